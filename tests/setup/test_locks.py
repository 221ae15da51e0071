"""The lock files cover the requirements of the package and of the `.in` files."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setup import machine, pins

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "setup"


def required(name: str) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in (SETUP / f"{name}.in").read_text().split("\n"))
    return [Requirement(line) for line in lines if line]


def declared() -> list[Requirement]:
    """Return the requirements in pyproject.toml, including those of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(text) for group in groups for text in group]
    return [each for each in requirements if each.name != "ltrain"]


def unmet(requirements: list[Requirement], lock: str) -> list[Requirement]:
    """Return the requirements without a matching pin in a lock."""
    pinned = pins.read_lock(SETUP / f"{lock}.lock")
    return [
        each
        for each in requirements
        if not each.specifier.contains(pinned.get(pins.canonical(each.name), "0"), prereleases=True)
    ]


@pytest.mark.parametrize("name", ["main", "vllm", "frameworks", "openai2", "otel144"])
def test_lock_covers_its_requirements(name: str) -> None:
    assert unmet(required(name), name) == [], "run `make lock`"


def test_locks_cover_the_package() -> None:
    """The locks of the frameworks cover the instrumentors of the frameworks."""
    remaining = declared()
    for name in ("main", "frameworks", "openai2", "otel144"):
        remaining = unmet(remaining, name)
    assert remaining == [], "run `make lock`"


def test_what_breaks_vllm_is_left_out() -> None:
    pinned = pins.read_lock(SETUP / "vllm.lock")
    assert pinned.keys() & {"torchvision", "torchaudio", "torchcodec", "triton"} == set()


def test_both_environments_have_one_torch() -> None:
    versions = {pins.read_lock(SETUP / f"{lock}.lock")["torch"] for lock in ("main", "vllm")}
    assert versions == {"2.13.0+cpu"}


def test_the_package_allows_the_pythons_of_the_locks_and_of_agents() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = Requirement(f"python{project['requires-python']}").specifier
    versions = [(3, minor) for minor in range(9, 20)]
    assert tuple(
        (major, minor) for major, minor in versions if allowed.contains(f"{major}.{minor}.0")
    ) == (*machine.PYTHONS, *machine.AGENT_PYTHONS)
