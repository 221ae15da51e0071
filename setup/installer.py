"""Run pip: its output goes to a log, its progress is a few lines, its error goes to the user."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU wheels, used only if the default index has no such wheel."""
NOT_FOUND = "No matching distribution found"
TICK = 10
"""Seconds between two lines of progress."""
PIP_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV")
"""Variables that would make pip read or install outside of the environment."""


class SetupFailed(Exception):
    """A step that failed; its text is for the user."""


def print_progress(name: str, text: str) -> None:
    """Print one line of progress."""
    print(f"{name:<13} {text}", flush=True)


@dataclass(frozen=True)
class Commands:
    """Runs commands in sequence, with their output in one log."""

    log: Path
    lock: int
    """Descriptor of the lock of the set-up. Children inherit it: if this process is killed, the
    next set-up waits for them and does not write to the same environment."""
    tick: Callable[[float, str], None] = lambda seconds, output: None
    """Called every few seconds with the seconds since the start and the output so far."""

    def with_tick(self, tick: Callable[[float, str], None]) -> Commands:
        return replace(self, tick=tick)

    async def run(self, *command: str) -> None:
        """Run `command` to its end; a cancellation terminates it.

        Raises:
            SetupFailed: when it exits with an error; the message has its last output.
        """
        start, offset = time.monotonic(), self.log.stat().st_size if self.log.exists() else 0
        environ = {name: value for name, value in os.environ.items() if name not in PIP_VARIABLES}
        with self.log.open("ab") as out:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environ | {"PIP_USER": "0"},
                pass_fds=(self.lock,),
            )
        try:
            await self._watch(child, start, offset)
        finally:
            if child.returncode is None:
                child.terminate()
                await child.wait()
        if child.returncode:
            raise SetupFailed(self._reason(offset, command))

    async def pip(self, python: Path, *arguments: str) -> None:
        """Install exactly the named packages, without dependencies."""
        pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
        exactly = ("--progress-bar", "off", "--no-deps", "--no-build-isolation", "--use-pep517")
        await self.run(*pip, *exactly, *arguments)

    async def torch(self, python: Path, pin: str) -> None:
        """Install the CPU build of torch from the default index, else from PyTorch's index."""
        try:
            await self.pip(python, pin)
        except SetupFailed as failure:
            if NOT_FOUND not in str(failure):
                raise
            await self.pip(python, "--index-url", TORCH_INDEX, pin)

    async def _watch(self, child: asyncio.subprocess.Process, start: float, offset: int) -> None:
        while child.returncode is None:
            try:
                await asyncio.wait_for(child.wait(), TICK)
            except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
                self.tick(time.monotonic() - start, self._output(offset))

    def _output(self, offset: int) -> str:
        with self.log.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")

    def _reason(self, offset: int, command: tuple[str, ...]) -> str:
        """Return the last output of a failed command after `offset`, errors first."""
        lines = [line.strip() for line in self._output(offset).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR", "Error", "OSError"))]
        last = " ".join((errors or lines)[-2:])
        return f"`{' '.join(command[:4])} …` failed: {last} All of its output is in {self.log}."
