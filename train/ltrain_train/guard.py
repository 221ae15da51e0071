"""Runs one command and leaves nothing of it behind.

Called as `python guard.py LIFELINE GRACE HELD SCRATCH COMMAND…`, it stands between
`ltrain_train.process` and each child, in a session of its own. It ends as the command ends. When
the pipe LIFELINE closes, because its owner asks for the end or died of whatever cause, the process
group of the command gets SIGTERM, and after GRACE seconds SIGKILL. Descendants that left the group,
Ray's daemons for one, are adopted by the guard and ended too. When all have ended, the folder
SCRATCH is removed. The descriptors HELD, numbers between commas, stay open in the guard and nowhere
below it: a lock on one of them ends when everything that the command started has ended.

It imports only the standard library, so that it starts in a few milliseconds.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STRAGGLERS = 2.0
"""Seconds that descendants have after the command itself has ended."""
OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Run the command to its end and give its exit status, negative for a signal."""
    lifeline, grace = int(arguments[0]), float(arguments[1])
    held = [int(number) for number in arguments[2].split(",") if number]
    scratch, command = arguments[3], arguments[4:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, OURS)  # one sent now waits until the command can die
    child = os.fork()
    if child == 0:
        _become([lifeline, *held], command)
    for number in OURS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OURS)
    guard = Guard(lifeline, child, held)
    if not guard.wait(ended_by_owner=True, seconds=None):
        os.killpg(0, signal.SIGTERM)
        guard.wait(ended_by_owner=False, seconds=grace)
    guard.sweep()
    if scratch:
        _remove(scratch)
    return guard.status


class Guard:
    """The command's exit status, and the end of everything it started."""

    def __init__(self, lifeline: int, child: int, held: Iterable[int] = ()) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        self._lifeline, self._wake, self._child = lifeline, wake_read, child
        self._kept = {lifeline, wake_read, wake_write, *held}
        self.status = -int(signal.SIGKILL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._close_inherited()

    def wait(self, *, ended_by_owner: bool, seconds: float | None) -> bool:
        """Wait for the command's end; False when the owner wants it first, or time is up."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._reap():
            left = None if until is None else max(0.0, until - time.monotonic())
            watched = [self._wake, self._lifeline] if ended_by_owner else [self._wake]
            readable = _readable(watched, left)
            if self._lifeline in readable or (not readable and left == 0.0):
                return self._reap()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 512)
        return True

    def sweep(self) -> None:
        """End every descendant that is left: SIGTERM, then SIGKILL.

        All are gone when this process has no child, since it adopts orphans. A look at /proc alone
        does not tell: it misses a process whose parent ends at that moment.
        """
        asked: set[int] = set()
        until = time.monotonic() + STRAGGLERS
        while self._has_children() and time.monotonic() < until:
            new = set(_descendants()) - asked
            _signal(new, signal.SIGTERM)
            asked |= new
            time.sleep(0.02)
        while self._has_children():
            _signal(_descendants(), signal.SIGKILL)
            time.sleep(0.01)

    def _reap(self) -> bool:
        ended = False
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._child:
                    self.status, ended = os.waitstatus_to_exitcode(found[1]), True
                    self._child = -1
        return ended or self._child == -1

    def _has_children(self) -> bool:
        self._reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _close_inherited(self) -> None:
        """Let go of the pipes that are the command's: its peer must see them close with it."""
        for name in os.listdir("/dev/fd"):
            number = int(name)
            if number > 2 and number not in self._kept:
                with contextlib.suppress(OSError):
                    os.close(number)


def _become(private: list[int], command: list[str]) -> None:
    """Replace this process by the command, which has none of the descriptors `private`."""
    for descriptor in private:
        os.close(descriptor)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OURS)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _remove(folder: str) -> None:
    import shutil  # takes longer to import than all of the above

    shutil.rmtree(folder, ignore_errors=True)


def _descendants() -> list[int]:
    """Process ids below this one; zombies, which only wait to be reaped, are not among them."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _readable(descriptors: list[int], seconds: float | None) -> list[int]:
    """Wait for one of them; `select` takes none from 1024 on, and owners have as many."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [number for number, _ in poll.poll(None if seconds is None else seconds * 1000)]


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":  # elsewhere the process group is all that is ended
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    if ended < 0:  # die as the command did, so that the owner reads the same signal
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -ended not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
