"""A small disk of its own for a command."""

import shutil
import subprocess
from pathlib import Path

import pytest

SMALL = ("unshare", "--map-root-user", "--mount", "sh", "-c")
"""Runs a command in its own mount namespace, which ends with the process."""


def small_disk(directory: Path) -> tuple[str, ...]:
    """Return the command that runs another one with a disk of 64 MiB at `directory`."""
    script = 'mount -t tmpfs -o size=64m none "$0" && exec "$@"'
    command = (*SMALL, script, str(directory))
    if not shutil.which("unshare") or subprocess.run((*command, "true")).returncode:
        pytest.skip("this machine lets nobody mount a disk of his own")
    return command
