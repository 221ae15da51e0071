"""What holds for the shape of the code."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("instrument", "collector", "transforms", "train", "cli", "examples", "setup")
VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_module_is_longer_than_three_hundred_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: length for path, length in lengths.items() if length > 300} == {}


def test_modules_are_named_for_what_they_are() -> None:
    assert [path for path in MODULES if path.stem in VAGUE] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in MODULES if path.read_text() and not path.read_text().startswith('"')]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("ltrain", {"torch", "polars", "pydantic", "chdb", "typer"}),
        ("ltrain.cli", {"torch", "polars", "pydantic", "chdb", "verl", "ray", "httpx"}),
        ("ltrain_train.gateway.app", {"torch", "verl", "ray", "transformers"}),
        ("ltrain_train.rollout.runner", {"torch", "verl", "ray", "transformers"}),
        ("ltrain_train.policy.versions", {"torch", "verl", "ray", "transformers"}),
    ],
)
def test_import_stays_light(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_package_says_that_it_is_typed() -> None:
    packages = [path.parent for path in ROOT.glob("*/ltrain*/__init__.py")]
    assert len(packages) == 5
    assert [path.name for path in packages if not (path / "py.typed").exists()] == []
