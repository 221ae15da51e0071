"""Runs a command on the files of an agent, such as tests in a reward, and lets it see no others."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from ltrain_train.sandboxes.bubblewrap import TMP_MIB, Bubblewrap
from ltrain_train.sandboxes.sandboxes import python_paths


def run_isolated(
    command: Sequence[str],
    folder: Path | str,
    *,
    input: str = "",
    timeout: float = 30.0,
    memory_mib: int = 1024,
    visible: Sequence[Path | str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command on files of an agent in a sandbox of bubblewrap, and return how it ended.

    The command can write the folder, in which it starts, and an empty `/tmp`. It can read the
    system's programs, the environment of this Python and what `visible` names. It has no network
    and sees no other process. Its output contains what it writes to stderr.

    Args:
        command: the program and its arguments; `python` is this Python.
        folder: a folder such as the `workspace` of a reward function.
        input: the text on its stdin.
        timeout: seconds until all its processes are killed.
        memory_mib: MiB that each of its processes can allocate; a file can have 64.
        visible: more files and folders that it can read.

    Raises:
        SandboxUnavailable: when no sandbox can be started.
        subprocess.TimeoutExpired: after the timeout.
    """
    _check_sandbox()
    python = Path(sys.executable)
    readable = [*map(Path, python_paths(python)), *(Path(path).absolute() for path in visible)]
    limits = ("prlimit", f"--as={memory_mib << 20}", f"--fsize={TMP_MIB << 20}")
    with TemporaryFile("w+", errors="replace") as output:
        done = subprocess.run(
            [*limits, *Bubblewrap.isolate(command, Path(folder).absolute(), readable)],
            input=input, stdout=output, stderr=subprocess.STDOUT, text=True, timeout=timeout,
            check=False, env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": "/tmp"},
        )  # fmt: skip
        output.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, output.read())


@cache
def _check_sandbox() -> None:
    """Check once that a sandbox can be started: a reward runs many commands."""
    Bubblewrap().check()
