"""`make lock`: resolve `setup/*.in` to complete lock files.

Run `python3.11 -m setup.lock [NAME ...]`. The newest pip resolves in a temporary environment (an
old pip backtracks for an hour) and installs nothing. Comments of the `.in` file are copied, and a
line `# without NAME: reason` removes a package from the result.

`NAME-cuda.in` lists how the environment NAME differs on a GPU: it adds and replaces requirements of
`NAME.in`, and removes those that are `# without`. All other packages keep the version in
`NAME.lock`. A line `# beside NAME: reason` leaves out the packages of another lock, with whose
versions the others must fit.

A lock holds for every supported Python: the oldest resolves it. Any other only checks that it
resolves to the same versions: `make lock PYTHON=python3.12`. A line `# python 3.12: reason` names
the one Python of a lock, which resolves it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from setup import machine
from setup.installer import NOT_FOUND, TORCH_INDEX
from setup.pins import canonical, read_lock

FOLDER = Path(__file__).resolve().parent
HEAD = "# Every package of the environment `{name}`; made by `make lock` from setup/{name}.in.\n"
VARIANT = "-cuda"
"""The end of the name of a variant for GPUs."""
REQUIREMENT = re.compile(r"^([\w.-]+)[^#\n]*", re.MULTILINE)
WITHOUT = re.compile(r"^# without ([\w-]+):", re.MULTILINE)
BESIDE = re.compile(r"^# beside ([\w-]+):", re.MULTILINE)
PINNED = re.compile(r"^# pinned ([\w-]+): (.+)$", re.MULTILINE)
PYTHON = re.compile(r"^# python ([\d.]+):", re.MULTILINE)
REASON = re.compile(r"^([\w.-]+)[^#\n]*  # (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """The content of `<name>.in`, each field by canonical names of packages."""

    requirements: dict[str, str]
    removed: set[str]
    """The packages of lines `# without NAME`."""
    reasons: dict[str, str]
    base: str | None
    """The environment whose variant this is."""
    beside: dict[str, str]
    """The pins of the environment whose packages are used too."""
    python: str
    """The Python that resolves it."""

    @classmethod
    def read(cls, name: str) -> Source:
        text = (FOLDER / f"{name}.in").read_text()
        return cls(
            {canonical(found[1]): found[0].strip() for found in REQUIREMENT.finditer(text)},
            {canonical(package) for package in WITHOUT.findall(text)},
            {canonical(each): why for each, why in REASON.findall(text) + PINNED.findall(text)},
            name.removesuffix(VARIANT) if name.endswith(VARIANT) else None,
            {
                package: version
                for other in BESIDE.findall(text)
                for package, version in read_lock(FOLDER / f"{other}.lock").items()
            },
            found[1] if (found := PYTHON.search(text)) else "{}.{}".format(*sys.version_info),
        )

    def all_requirements(self) -> dict[str, str]:
        """Return the requirements, with those of the base, without the removed ones."""
        inherited = Source.read(self.base).requirements if self.base else {}
        return {
            package: line
            for package, line in (inherited | self.requirements).items()
            if package not in self.removed
        }

    def all_reasons(self) -> dict[str, str]:
        """Return the reasons, with those of the base."""
        return (Source.read(self.base).reasons if self.base else {}) | self.reasons

    def inherited_pins(self) -> dict[str, str]:
        """Return package -> version of what it takes from the lock of another environment."""
        pins = read_lock(FOLDER / f"{self.base}.lock") if self.base else self.beside
        return {name: version for name, version in pins.items() if name not in self.requirements}


def resolve(source: Source, constraints: Mapping[str, str]) -> dict[str, str]:
    """Return package -> version of the requirements of `source` and all their dependencies.

    The packages in `constraints` keep their versions, and those that are removed or of another
    environment are left out.
    """
    python = machine.interpreter(source.python) or sys.exit(
        machine.interpreter_fault(source.python)
    )
    with tempfile.TemporaryDirectory() as folder:
        requirements, kept = Path(folder) / "requirements.txt", Path(folder) / "constraints.txt"
        requirements.write_text("\n".join(source.all_requirements().values()))
        kept.write_text("\n".join(f"{name}=={version}" for name, version in constraints.items()))
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--upgrade", "pip"], check=True, stderr=subprocess.DEVNULL)
        report = Path(folder) / "report.json"
        command = [*pip, "install", "--dry-run", "--ignore-installed", "--report", str(report)]
        command += ["--constraint", str(kept), "-r", str(requirements)]
        fault = _run(command)
        if NOT_FOUND in fault and not source.base:
            fault = _run([*command, "--extra-index-url", TORCH_INDEX])
        if fault:
            sys.exit(fault)
        resolved = json.loads(report.read_text())["install"]
    pairs = ((each["metadata"]["name"], each["metadata"]["version"]) for each in resolved)
    pins = {canonical(name): version for name, version in pairs}
    left_out = {*source.removed, *source.beside}
    return {name: version for name, version in pins.items() if name not in left_out}


def _run(command: list[str]) -> str:
    """Run pip and return its errors; empty if it succeeded."""
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
    return ("\n".join(errors) or done.stderr) if done.returncode else ""


def write_lock(name: str) -> None:
    """Resolve `<name>.in`, write `<name>.lock`, and print what changed."""
    source, lock = Source.read(name), FOLDER / f"{name}.lock"
    start, before = time.monotonic(), read_lock(lock) if lock.exists() else {}
    pins, reasons = resolve(source, source.inherited_pins()), source.all_reasons()
    lines = [_line(package, pins[package], reasons) for package in sorted(pins)]
    lock.write_text(HEAD.format(name=name) + "".join(lines))
    changed = sorted(
        package for package in {*before, *pins} if before.get(package) != pins.get(package)
    )
    seconds = time.monotonic() - start
    print(f"{lock.name}: {len(pins)} packages, {len(changed)} changed, {seconds:.0f} s")
    for package in changed:
        print(f"  {package} {before.get(package, '-')} -> {pins.get(package, '-')}")


def check_lock(name: str) -> None:
    """Exit with an error if `<name>.in` resolves to a package that `<name>.lock` does not pin."""
    lock = FOLDER / f"{name}.lock"
    pins = read_lock(lock)
    resolved = resolve(Source.read(name), pins)
    version = sys.version.split()[0]
    if missing := sorted(package for package in resolved if package not in pins):
        sys.exit(
            f"{lock.name} lacks what Python {version} needs: {', '.join(missing)}. "
            f"Add it to setup/{name}.in with the reason, and run `make lock`."
        )
    print(f"{lock.name}: holds for Python {version}")


def _line(package: str, version: str, reasons: dict[str, str]) -> str:
    reason = f"  # {reasons[package]}" if package in reasons else ""
    return f"{package}=={version}{reason}\n"


def main(names: Sequence[str]) -> None:
    if sys.version_info[:2] not in machine.PYTHONS:
        supported = " and ".join("{}.{}".format(*each) for each in machine.PYTHONS)
        sys.exit(f"The locks are for Python {supported}; this is {sys.version.split()[0]}.")
    update = write_lock if sys.version_info[:2] == machine.PYTHONS[0] else check_lock
    for name in names or sorted(each.stem for each in FOLDER.glob("*.in")):  # bases before variants
        update(name)


if __name__ == "__main__":
    main(sys.argv[1:])
