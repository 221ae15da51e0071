"""`make lock`: resolve `setup/*.in` to complete lock files.

Run `python3.11 -m setup.lock [NAME ...]`. The newest pip resolves in a temporary environment (an
old pip backtracks for an hour) and installs nothing. Comments of the `.in` file are copied, and a
line `# without NAME: reason` removes a package from the result.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from setup import machine
from setup.installer import NOT_FOUND, TORCH_INDEX
from setup.pins import canonical, read_lock

FOLDER = Path(__file__).resolve().parent
HEAD = "# Every package of the environment `{name}`; made by `make lock` from setup/{name}.in.\n"
WITHOUT = re.compile(r"^# without ([\w-]+):", re.MULTILINE)
PINNED = re.compile(r"^# pinned ([\w-]+): (.+)$", re.MULTILINE)
REASON = re.compile(r"^([\w.-]+)[^#\n]*  # (.+)$", re.MULTILINE)


def resolve(source: Path) -> dict[str, str]:
    """Return name -> version of the requirements in `source` and all their dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--upgrade", "pip"], check=True, stderr=subprocess.DEVNULL)
        report = Path(folder) / "report.json"
        command = [*pip, "install", "--dry-run", "--ignore-installed", "--report", str(report)]
        fault = _run([*command, "-r", str(source)])
        if NOT_FOUND in fault:
            fault = _run([*command, "--extra-index-url", TORCH_INDEX, "-r", str(source)])
        if fault:
            sys.exit(fault)
        resolved = json.loads(report.read_text())["install"]
    pairs = ((each["metadata"]["name"], each["metadata"]["version"]) for each in resolved)
    return {canonical(name): version for name, version in pairs}


def _run(command: list[str]) -> str:
    """Run pip and return its errors; empty if it succeeded."""
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
    return ("\n".join(errors) or done.stderr) if done.returncode else ""


def write_lock(name: str) -> None:
    """Resolve `<name>.in`, write `<name>.lock`, and print what changed."""
    source, lock = FOLDER / f"{name}.in", FOLDER / f"{name}.lock"
    start, before = time.monotonic(), read_lock(lock) if lock.exists() else {}
    text = source.read_text()
    pins = resolve(source)
    for unwanted in WITHOUT.findall(text):
        pins.pop(canonical(unwanted), None)
    comments = REASON.findall(text) + PINNED.findall(text)
    reasons = {canonical(package): reason for package, reason in comments}
    lines = [_line(package, pins[package], reasons) for package in sorted(pins)]
    lock.write_text(HEAD.format(name=name) + "".join(lines))
    changed = sorted(
        package for package in {*before, *pins} if before.get(package) != pins.get(package)
    )
    seconds = time.monotonic() - start
    print(f"{lock.name}: {len(pins)} packages, {len(changed)} changed, {seconds:.0f} s")
    for package in changed:
        print(f"  {package} {before.get(package, '-')} -> {pins.get(package, '-')}")


def _line(package: str, version: str, reasons: dict[str, str]) -> str:
    reason = f"  # {reasons[package]}" if package in reasons else ""
    return f"{package}=={version}{reason}\n"


def main(names: Sequence[str]) -> None:
    if sys.version_info[:2] != machine.PYTHON:
        sys.exit(
            f"The locks are for Python 3.11; this is {sys.version.split()[0]}. Run python3.11."
        )
    for name in names or [each.stem for each in sorted(FOLDER.glob("*.in"))]:
        write_lock(name)


if __name__ == "__main__":
    main(sys.argv[1:])
