"""Lock files, and which of their pins an environment holds."""

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
"""pip writes RECORD last: a package without one was cut off while it was installed."""


def canonical(name: str) -> str:
    """Give the one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(lock: Path) -> dict[str, str]:
    """Give name -> version of every pin."""
    lines = (line.split("#")[0].strip() for line in lock.read_text().splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {canonical(name): version for name, version in pairs}


def installed(python: Path) -> dict[str, str]:
    """Give name -> version of what is wholly installed; half-installed metadata is removed."""
    done = subprocess.run(
        [str(python), "-I", "-c", LISTING], capture_output=True, text=True, check=True
    )
    whole: dict[str, str] = {}
    for path, (name, version, recorded) in json.loads(done.stdout).items():
        if recorded and name:
            whole[canonical(name)] = version
        elif path.endswith(".dist-info"):
            shutil.rmtree(path)  # pip refuses to replace a package that has no RECORD
    return whole


def missing(lock: dict[str, str], have: dict[str, str]) -> dict[str, str]:
    """Give the pins of `lock` that are not installed, or in another version."""
    return {name: version for name, version in lock.items() if have.get(name) != version}
