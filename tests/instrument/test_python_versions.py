"""The instrumentation on each Python that the metadata allow and this machine has."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from ltrain.doctor import AGENT_PYTHONS

ROOT = Path(__file__).parents[2]
VERSIONS = [f"{major}.{minor}" for major, minor in AGENT_PYTHONS]


def test_metadata_allow_the_versions_of_the_doctor() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    *_, (_, last) = AGENT_PYTHONS
    assert project["requires-python"] == f">=3.11,<3.{last + 1}"
    listed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert listed == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_every_module_can_be_imported(tmp_path: Path, version: str) -> None:
    """Other versions import this environment's dependencies, which need nothing compiled for it."""
    own = sys.version_info[:2] == tuple(map(int, version.split(".")))
    python = sys.executable if own else f"python{version}"
    environ = {**os.environ, "LTRAIN_HOME": str(tmp_path)}
    paths = [ROOT / "instrument", ROOT / "cli", sysconfig.get_path("purelib")]
    environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    try:
        probe = subprocess.run([python, "-S", "-c", ""], capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip(f"this machine has no {python}")
    if probe.returncode:
        pytest.skip(f"{python} cannot run here: {probe.stderr.decode()[:200]}")
    done = subprocess.run(
        [
            python,
            "-W",
            "error::DeprecationWarning:ltrain_instrument",
            "tests/instrument/import_all.py",
        ],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f" modules on Python {version}." in done.stdout
