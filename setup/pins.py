"""Lock files, and the pins of them that are installed in an environment."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

LISTING = """
import importlib.metadata, json
found = {}
for dist in importlib.metadata.distributions():
    found[str(dist._path)] = (dist.name, dist.version, dist.read_text("RECORD") is not None)
print(json.dumps(found))
"""
"""pip writes RECORD last: a package without it was not installed completely."""


def canonical(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(lock: Path) -> dict[str, str]:
    """Return name -> version of every pin."""
    lines = (line.split("#")[0].strip() for line in lock.read_text().splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {canonical(name): version for name, version in pairs}


def requirement(name: str, version: str) -> str:
    """Return pip's requirement for a pin.

    `torch==2.13.0` also means the CPU build 2.13.0+cpu, `torch===2.13.0` does not. pip compares
    `===` as text, so other packages, whose metadata may spell a version differently, have `==`.
    """
    return f"{name}{'===' if name == 'torch' else '=='}{version}"


def installed(python: Path) -> dict[str, str]:
    """Return name -> version of complete packages; remove the metadata of others."""
    done = subprocess.run(
        [str(python), "-I", "-c", LISTING], capture_output=True, text=True, check=True
    )
    packages: dict[str, str] = {}
    for path, (name, version, recorded) in json.loads(done.stdout).items():
        is_left = Path(path).name.startswith("~")  # pip was ended while it replaced the package
        if recorded and name and not is_left:
            packages[canonical(name)] = version
        elif path.endswith(".dist-info"):
            shutil.rmtree(path)  # pip refuses to replace a package that has no RECORD
    return packages


def missing(lock: dict[str, str], present: dict[str, str]) -> dict[str, str]:
    """Return the pins of `lock` that are not installed in this version."""
    return {name: version for name, version in lock.items() if present.get(name) != version}
