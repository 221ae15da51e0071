"""The first process of a sandbox: forwards ports, keeps limits, and hands out what is left.

`python -I -S init.py CONFIG COMMAND…` runs as process 1 of its process namespace, where nothing can
stop or read it. CONFIG is
a marshalled dict, in hexadecimal digits.

* It listens at the ports of `listen` and forwards each connection to a socket of the host.
* It copies the workspace, and starts the command with resource limits. Ten times a second it
  measures the processes; if they exceed a limit, it ends all of them and prints which.
* At the command's end, or on SIGTERM, it ends what still runs. Then it writes the workspace and
  unsent spans to the outbox as a tar file. Only files, folders and symbolic links are in it.

The module imports few modules of the standard library, so that it starts in a few milliseconds:
`contextlib`, `json`, `socket` and `typing` would take as long as all the others together.
"""

import _socket
import _thread
import ctypes
import marshal
import os
import resource
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tarfile import TarFile
    from typing import Any

    Config = dict[str, Any]

PR_SET_DUMPABLE = 4
MEASURE = 0.1
"""Seconds between two measurements of the processes."""
END_GRACE = 2.0
"""Seconds between SIGTERM, on which an instrumented process sends its spans, and SIGKILL."""
LIMIT_STATUS = 120
"""Exit status of an attempt that exceeded a limit."""
MAX_ENTRIES = 50_000
"""Files, folders and links of a workspace that are handed out."""
MIB = 1 << 20
STARTED = b"started"
STOPPED = -int(signal.SIGTERM)
"""The status of an attempt that was ended from outside."""
AWAITED = (signal.SIGCHLD, signal.SIGTERM)


def run_sandbox(config: "Config", command: list[str]) -> int:
    """Run the command and return its exit status."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody may read or trace this process
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # its parent ignores it
    listeners = [(_listen(*entry[:2]), entry[2]) for entry in config["listen"]]
    for folder in config["make"]:
        os.makedirs(folder, mode=0o700)
    if config["copy"]:
        _copy(*config["copy"])
    with open(config["outbox"], "wb") as outbox:
        outbox.write(STARTED)  # what fails from here on is not the sandbox
    child = os.fork()
    if child == 0:
        _exec_command(config["limits"], command)
    for listener, path in listeners:
        _thread.start_new_thread(_accept, (listener, path))
    status, excess = _watch(child, config["limits"])
    _end_all(0.0 if excess else END_GRACE)
    if status == STOPPED:  # only its spans are of use
        config["folders"].pop("workspace")
    hand_out(config)
    if excess:
        os.write(2, f"\nthe sandbox ended the attempt: {excess}\n".encode())
        return LIMIT_STATUS
    return status if status >= 0 else 128 - status


def _listen(address: str, port: int) -> _socket.socket:
    listener = _socket.socket()
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(128)
    return listener


def _copy(source: str, target: str) -> None:
    arguments = ["cp", "-a", f"{source}/.", target]
    process = os.posix_spawnp("cp", arguments, os.environ, setsigmask=())
    if os.waitpid(process, 0)[1]:
        os.write(2, b"\nthe workspace does not fit into the disk limit of the sandbox\n")
        os._exit(LIMIT_STATUS)


def _exec_command(limits: "Config", command: list[str]) -> None:
    cpu_seconds = limits["cpu_seconds"]
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    os.setsid()  # a signal to its process group must not reach processes outside
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        # of one process, and a little more than the sum that is measured
        (resource.RLIMIT_CPU, cpu_seconds and cpu_seconds + 2),
        (resource.RLIMIT_FSIZE, limits["disk_mib"] * MIB),
        (resource.RLIMIT_DATA, 2 * limits["memory_mib"] * MIB),
        (resource.RLIMIT_NPROC, limits["processes"] if limits["counts_processes"] else None),
    ):
        if value is not None:
            hard = resource.getrlimit(kind)[1]
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (least, least))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails instead
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _accept(listener: _socket.socket, path: str) -> None:
    while True:
        try:
            number, _ = listener._accept()  # type: ignore[attr-defined]
            inner = _socket.socket(fileno=number)
            _thread.start_new_thread(_forward, (inner, path))
        except (OSError, RuntimeError):  # too many descriptors or threads
            time.sleep(MEASURE)


def _forward(inner: _socket.socket, path: str) -> None:
    outer = _socket.socket(_socket.AF_UNIX)
    try:
        outer.connect(path)
        peers = {inner.fileno(): (inner, outer), outer.fileno(): (outer, inner)}
        while peers:
            for number in select.select(list(peers), [], [])[0]:
                source, target = peers[number]
                if received := source.recv(65536):
                    target.sendall(received)
                else:
                    target.shutdown(_socket.SHUT_WR)
                    del peers[number]
    except OSError:  # one of the two has closed the connection
        pass
    finally:
        inner.close()
        outer.close()


def _watch(child: int, limits: "Config") -> tuple[int, str]:
    """Return the status of the command, and which limit its processes exceed; '' for none."""
    due = 0.0
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            return os.waitstatus_to_exitcode(status), ""
        if ended:
            continue
        if time.monotonic() >= due:
            if excess := _find_excess(limits):
                return 0, excess
            due = time.monotonic() + MEASURE
        received = signal.sigtimedwait(AWAITED, MEASURE)
        if received is not None and received.si_signo == signal.SIGTERM:
            return STOPPED, ""


def _find_excess(limits: "Config") -> str:
    threads, pages, ticks = 0, 0, 0
    processes = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    if len(processes) > limits["processes"]:
        return f"it has more than {limits['processes']} processes and threads"
    for name in processes:
        fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
        if fields:
            ticks += sum(map(int, fields[11:15]))
            threads += int(fields[17])
            pages += int(fields[21])
    ended = os.times()
    seconds = ticks / os.sysconf("SC_CLK_TCK") + ended.children_user + ended.children_system
    if threads > limits["processes"]:
        return f"it has more than {limits['processes']} processes and threads"
    if limits["cpu_seconds"] is not None and seconds > limits["cpu_seconds"]:
        return f"it used more than {limits['cpu_seconds']} s of CPU"
    memory = limits["memory_mib"] * MIB
    # pages that processes share count once for each, so the exact sum decides
    if pages * resource.getpagesize() > memory and sum(map(_own_bytes, processes)) > memory:
        return f"it uses more than {limits['memory_mib']} MiB of memory"
    return ""


def _own_bytes(process: str) -> int:
    """Return the memory of a process, with its share of the shared pages."""
    for line in _read(f"/proc/{process}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    # a process that nobody may read counts in full
    resident = _read(f"/proc/{process}/statm").split()[1:2]
    return int(resident[0]) * resource.getpagesize() if resident else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has ended, or nobody may read it
        return b""


def _end_all(grace: float) -> None:
    """End every other process of the sandbox."""
    until = time.monotonic() + grace
    _signal_all(signal.SIGTERM if grace else signal.SIGKILL)
    while _has_children():
        if time.monotonic() >= until:
            _signal_all(signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], 0.02)


def _signal_all(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def hand_out(config: "Config") -> None:
    """Write what is in the folders to the outbox."""
    import io
    import json
    import tarfile

    omitted: list[str] = []
    left = [config["limits"]["disk_mib"] * MIB, MAX_ENTRIES]
    with open(config["outbox"], "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
        for name, folder in config["folders"].items():
            if os.path.isdir(folder):
                _add_folder(archive, folder, name, left, omitted)
        report = json.dumps(omitted).encode()
        member = tarfile.TarInfo("omitted")
        member.size = len(report)
        archive.addfile(member, io.BytesIO(report))


def _add_folder(
    archive: "TarFile", folder: str, name: str, left: list[int], omitted: list[str]
) -> None:
    """Add the entries of a folder; one that cannot be handed out is named in `omitted`."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        omitted.append(f"{name}: {error.strerror}")
        return
    for entry in entries:
        path = f"{name}/{entry.name}"
        if reason := _add_entry(archive, entry, path, left):
            if len(omitted) < 100:
                omitted.append(f"{path}: {reason}")
        elif entry.is_dir(follow_symlinks=False):
            _add_folder(archive, entry.path, path, left, omitted)


def _add_entry(archive: "TarFile", entry: "os.DirEntry[str]", path: str, left: list[int]) -> str:
    """Add one entry, and return why it is not added; '' if it is."""
    state = entry.stat(follow_symlinks=False)
    size = state.st_size if stat.S_ISREG(state.st_mode) else 0
    if entry.name == ".git":  # its settings can name programs, which git runs
        return "a folder of git"
    if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode) or entry.is_symlink()):
        return "not a file, folder or link"
    if size > left[0] or not left[1]:
        return "too large"
    left[0], left[1] = left[0] - size, left[1] - 1
    member = archive.gettarinfo(entry.path, path)
    if stat.S_ISREG(state.st_mode):
        member.type, member.linkname, member.size = b"0", "", size  # also of a hard link
        try:
            with open(entry.path, "rb") as file:
                archive.addfile(member, file)
        except PermissionError as error:
            return str(error.strerror)
    else:
        archive.addfile(member)
    return ""


if __name__ == "__main__":
    sys.exit(run_sandbox(marshal.loads(bytes.fromhex(sys.argv[1])), sys.argv[2:]))
