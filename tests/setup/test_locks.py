"""The lock files cover what the package and the `.in` files ask for."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setup import pins

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "setup"


def asked(name: str) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in (SETUP / f"{name}.in").read_text().split("\n"))
    return [Requirement(line) for line in lines if line]


def declared() -> list[Requirement]:
    """Give what pyproject.toml asks for, its extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(text) for group in groups for text in group]
    return [each for each in requirements if each.name != "ltrain"]


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [("main", declared()), ("main", asked("main")), ("vllm", asked("vllm"))],
    ids=["pyproject.toml", "main.in", "vllm.in"],
)
def test_lock_covers(lock: str, requirements: list[Requirement]) -> None:
    pinned = pins.read(SETUP / f"{lock}.lock")
    unmet = [
        str(each)
        for each in requirements
        if not each.specifier.contains(pinned.get(pins.canonical(each.name), "0"), prereleases=True)
    ]
    assert unmet == [], "`make lock` resolves them"


def test_what_breaks_vllm_is_left_out() -> None:
    pinned = pins.read(SETUP / "vllm.lock")
    assert pinned.keys() & {"torchvision", "torchaudio", "torchcodec", "triton"} == set()


def test_both_environments_have_one_torch() -> None:
    versions = {pins.read(SETUP / f"{lock}.lock")["torch"] for lock in ("main", "vllm")}
    assert versions == {"2.13.0+cpu"}
