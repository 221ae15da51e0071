"""pip, quietly: its output goes to a log, its progress to few lines, its error to the user."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU wheels; asked only where the plain index has no such wheel."""
NOT_FOUND = "No matching distribution found"
TICK = 10
"""Seconds between two signs of life."""
ELSEWHERE = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV")
"""What would make pip look or install outside of the environment."""


class SetupFailed(Exception):
    """A step that did not succeed; its text is for the user."""


def say(name: str, text: str) -> None:
    """Print one line of progress."""
    print(f"{name:<13} {text}", flush=True)


@dataclass(frozen=True)
class Commands:
    """Runs commands one after another, their output in one log."""

    log: Path
    held: int
    """Descriptor of the set-up's lock. Children inherit it: when this process is killed, the next
    set-up waits for them instead of writing into the same environment."""
    tick: Callable[[float, str], None] = lambda seconds, said: None
    """Called every few seconds with the time since the start and all that was said."""

    def ticking(self, tick: Callable[[float, str], None]) -> Commands:
        return replace(self, tick=tick)

    async def run(self, *command: str) -> None:
        """Run `command` to its end; a cancellation ends it first.

        Raises:
            SetupFailed: when it exits with an error, with the last thing it said.
        """
        began, mark = time.monotonic(), self.log.stat().st_size if self.log.exists() else 0
        environ = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
        with self.log.open("ab") as out:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environ | {"PIP_USER": "0"},
                pass_fds=(self.held,),
            )
        try:
            await self._watch(child, began, mark)
        finally:
            if child.returncode is None:
                child.terminate()
                await child.wait()
        if child.returncode:
            raise SetupFailed(self._reason(mark, command))

    async def pip(self, python: Path, *arguments: str) -> None:
        """Install exactly what `arguments` name, nothing that they depend on."""
        pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
        exactly = ("--progress-bar", "off", "--no-deps", "--no-build-isolation", "--use-pep517")
        await self.run(*pip, *exactly, *arguments)

    async def torch(self, python: Path, pin: str) -> None:
        """Install torch's CPU build from the index in use, else from PyTorch's own."""
        try:
            await self.pip(python, pin)
        except SetupFailed as failure:
            if NOT_FOUND not in str(failure):
                raise
            await self.pip(python, "--index-url", TORCH_INDEX, pin)

    async def _watch(self, child: asyncio.subprocess.Process, began: float, mark: int) -> None:
        while child.returncode is None:
            try:
                await asyncio.wait_for(child.wait(), TICK)
            except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
                self.tick(time.monotonic() - began, self._said(mark))

    def _said(self, mark: int) -> str:
        with self.log.open("rb") as file:
            file.seek(mark)
            return file.read().decode(errors="replace")

    def _reason(self, mark: int, command: tuple[str, ...]) -> str:
        """Give what a failed command said after `mark`, its errors first."""
        lines = [line.strip() for line in self._said(mark).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR", "Error", "OSError"))]
        said = " ".join((errors or lines)[-2:])
        return f"`{' '.join(command[:4])} …` failed: {said} The whole of it: {self.log}"
