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


def unmet(requirements: list[Requirement], lock: str) -> list[Requirement]:
    """Give those that a lock does not pin in a version that they allow."""
    pinned = pins.read(SETUP / f"{lock}.lock")
    return [
        each
        for each in requirements
        if not each.specifier.contains(pinned.get(pins.canonical(each.name), "0"), prereleases=True)
    ]


@pytest.mark.parametrize("name", ["main", "vllm", "frameworks", "openai2"])
def test_lock_covers_what_is_asked_for(name: str) -> None:
    assert unmet(asked(name), name) == [], "`make lock` resolves them"


def test_locks_cover_the_package() -> None:
    """The instrumentors of frameworks are where the frameworks are."""
    left = declared()
    for name in ("main", "frameworks", "openai2"):
        left = unmet(left, name)
    assert left == [], "`make lock` resolves them"


def test_what_breaks_vllm_is_left_out() -> None:
    pinned = pins.read(SETUP / "vllm.lock")
    assert pinned.keys() & {"torchvision", "torchaudio", "torchcodec", "triton"} == set()


def test_both_environments_have_one_torch() -> None:
    versions = {pins.read(SETUP / f"{lock}.lock")["torch"] for lock in ("main", "vllm")}
    assert versions == {"2.13.0+cpu"}
