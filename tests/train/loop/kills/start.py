"""A process that has imported `ltrain` and forks a process for each command, to save the imports.

A line of its input is a command as JSON: `arguments` of `ltrain`, `environ`, `folder`, `output`,
and `crash`. It answers with a line for the process id and, at the end, a line for the exit status.
With FAKE_GPU in its environment a command can use the GPUs that nvidia-smi lists.

`crash` names the write before which the command kills itself, as `EVENT PATTERN NUMBER`: of the
writes whose audit event and path, relative to LTRAIN_HOME, match, so many happen before the kill.
`os.write`, which has no audit event, counts as one.
"""

import json
import os
import signal
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import ltrain_train.loop.command
import ltrain_train.loop.run
import ltrain_train.runs.plan
from ltrain.cli import main

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
EVENTS = {"os.rename": 1, "os.link": 1, "os.remove": 0, "os.rmdir": 0, "os.mkdir": 0}
"""The audit events of writes, and which of their arguments is the path that changes."""


def kill_before(crash: str, home: Path) -> None:
    """Kill this process before the write that `crash` names."""
    event, pattern, count = crash.split()
    left, write = int(count), os.write

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            consider(name, arguments[0])
        elif name in EVENTS:
            consider(name, arguments[EVENTS[name]])

    def observed_write(descriptor: int, data: Any) -> int:
        consider("os.write", os.readlink(f"/proc/self/fd/{descriptor}"))
        return write(descriptor, data)

    def consider(name: str, path: Any) -> None:
        nonlocal left
        if not isinstance(path, str | os.PathLike) or not fnmatch(name, event):
            return
        relative = os.path.relpath(path, home)
        if not relative.startswith("..") and fnmatch(relative, pattern):
            left -= 1
            if left < 0:
                write(1, f"killed before {name} {relative}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    os.write = observed_write


def become(command: dict[str, Any]) -> None:
    """Make this process the one of a command."""
    os.setsid()
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environ"])
    if "FAKE_GPU" in os.environ:
        ltrain_train.runs.plan.is_usable = lambda control_device=Path(): True
    output = os.open(command["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["ltrain", *command["arguments"]]
    if command["crash"]:
        kill_before(command["crash"], Path(os.environ["LTRAIN_HOME"]))


def serve() -> None:
    """Fork a process for each line of the input; return in that process."""
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if not pid:
            become(command)
            return
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()


if __name__ == "__main__":
    serve()
    main()
