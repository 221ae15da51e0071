"""Run one command and end every process that it started.

For each child, `ltrain_train.processes.children` starts
`python guard.py LIFELINE GRACE KEEP_OPEN SCRATCH COMMAND…` in a session of its own.

* The guard exits with the status of the command.
* When the pipe LIFELINE closes, because the owner requested a stop or died, the guard sends SIGTERM
  to the command's process group, and SIGKILL after GRACE seconds.
* The guard adopts descendants that left the group, such as Ray's daemons, and ends them too. Then
  it removes the folder SCRATCH.
* The descriptors KEEP_OPEN (numbers separated by commas) stay open in the guard alone. A lock on
  one of them is released when everything that the command started has ended.

The module imports only the standard library, so that it starts in a few milliseconds.
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
SWEEP_GRACE = 2.0
"""Seconds that descendants may run after the command itself has ended."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_guarded(arguments: list[str]) -> int:
    """Run the command to its end and return its exit status, negative for a signal."""
    lifeline, grace = int(arguments[0]), float(arguments[1])
    keep_open = [int(number) for number in arguments[2].split(",") if number]
    scratch, command = arguments[3], arguments[4:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(
        signal.SIG_BLOCK, STOP_SIGNALS
    )  # one sent now waits until the command can die
    child = os.fork()
    if child == 0:
        _exec_command([lifeline, *keep_open], command)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    guard = Guard(lifeline, child, keep_open)
    if not guard.wait(ended_by_owner=True, seconds=None):
        os.killpg(0, signal.SIGTERM)
        guard.wait(ended_by_owner=False, seconds=grace)
    guard.sweep()
    if scratch:
        _remove_folder(scratch)
    return guard.status


class Guard:
    """Waits for the command and ends everything that it started."""

    def __init__(self, lifeline: int, child: int, keep_open: Iterable[int] = ()) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        self._lifeline, self._wake, self._child = lifeline, wake_read, child
        self._keep_open = {lifeline, wake_read, wake_write, *keep_open}
        self.status = -int(signal.SIGKILL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._close_inherited()

    def wait(self, *, ended_by_owner: bool, seconds: float | None) -> bool:
        """Wait for the command; return False if the owner requests its end first or time is up."""
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
        """End every remaining descendant: SIGTERM, then SIGKILL.

        The guard adopts orphans, so all have ended when it has no child. A scan of /proc is not
        enough: it misses a process whose parent ends at that moment.
        """
        signalled: set[int] = set()
        until = time.monotonic() + SWEEP_GRACE
        while self._has_children() and time.monotonic() < until:
            new = set(_descendants()) - signalled
            _signal(new, signal.SIGTERM)
            signalled |= new
            time.sleep(0.02)
        while self._has_children():
            _signal(_descendants(), signal.SIGKILL)
            time.sleep(0.01)

    def _reap(self) -> bool:
        ended = False
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self._child:
                    self.status, ended = os.waitstatus_to_exitcode(reaped[1]), True
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
        """Close the command's pipes: its peer must see them close when the command ends."""
        for name in os.listdir("/dev/fd"):
            number = int(name)
            if number > 2 and number not in self._keep_open:
                with contextlib.suppress(OSError):
                    os.close(number)


def _exec_command(private: list[int], command: list[str]) -> None:
    """Replace this process by the command, without the descriptors `private`."""
    for descriptor in private:
        os.close(descriptor)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _remove_folder(folder: str) -> None:
    import shutil  # its import takes longer than all the others together

    shutil.rmtree(folder, ignore_errors=True)


def _descendants() -> list[int]:
    """Return the ids of all descendants of this process, without zombies."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))
    descendants, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        descendants += below
        queue += below
    return descendants


def _readable(descriptors: list[int], seconds: float | None) -> list[int]:
    """Return the readable descriptors. `select` refuses descriptors above 1023; `poll` does not."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [number for number, _ in poll.poll(None if seconds is None else seconds * 1000)]


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":  # on other systems only the process group is ended
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    ended = run_guarded(sys.argv[1:])
    if ended < 0:  # die of the command's signal, so that the owner sees the same one
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -ended not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
