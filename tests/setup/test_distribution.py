"""The wheel of a release: its metadata and files, and `collect` without other packages."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setup import wheel_check

ROOT = Path(__file__).parents[2]
URL = "https://git.example/owner/ltrain"
HEAVY = {"aiohttp", "httpx", "ray", "torch", "transformers", "verl", "vllm"}
BLOCKED = """
import sys
from importlib.machinery import PathFinder
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Blocked())
"""
"""Code that hides the packages of this environment that the extra `collect` does not install."""


def build(folder: Path, url: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PROJECT_URL": url},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = build(folder, f"{URL}/")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_license_is_an_expression_with_its_file(wheel: Path) -> None:
    found = read_metadata(wheel)
    assert (found["License-Expression"], found["License-File"]) == ("Apache-2.0", "LICENSE")
    assert not [each for each in found.get_all("Classifier", []) if each.startswith("License")]
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_the_urls_are_those_of_the_repository_that_builds_it(wheel: Path) -> None:
    found = read_metadata(wheel)
    urls = dict(each.split(", ") for each in found.get_all("Project-URL", []))
    assert urls == {
        "Homepage": URL,
        "Documentation": f"{URL}/blob/v{found['Version']}/docs/README.md",
        "Changelog": f"{URL}/blob/v{found['Version']}/CHANGELOG.md",
        "Issues": f"{URL}/issues",
    }
    for name in ("Documentation", "Changelog"):
        assert (ROOT / urls[name].partition(f"v{found['Version']}/")[2]).is_file()


def test_a_build_without_an_address_names_no_repository(tmp_path: Path) -> None:
    assert build(tmp_path).returncode == 0
    (path,) = tmp_path.glob("*.whl")
    assert read_metadata(path).get_all("Project-URL") is None


@pytest.mark.parametrize("url", ["http://git.example/ltrain", "https://me:key@git.example/a", "x"])
def test_another_address_is_refused(tmp_path: Path, url: str) -> None:
    done = build(tmp_path, url)
    assert done.returncode != 0 and not list(tmp_path.iterdir())
    assert f"PROJECT_URL is '{url}'. Set it to the https address" in done.stderr


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    packages = [path.parent for path in ROOT.glob("*/ltrain*/__init__.py")]
    expected = {
        str(file.relative_to(package.parent))
        for package in packages
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {each for each in names if ".dist-info/" not in each} == expected
    assert {each.partition("/")[0] for each in expected} == {path.name for path in packages}


def closure(extra: str) -> set[str]:
    """Return the distributions that `ltrain[extra]` installs here, by their normalized names."""
    found: set[tuple[str, str]] = set()
    waiting = [("ltrain", extra), ("ltrain", "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        try:
            texts = declared(extra) if name == "ltrain" else metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # a requirement of another Python or system
            continue
        for requirement in map(Requirement, texts):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(normalized(requirement.name), e) for e in ("", *requirement.extras)]
    return {name for name, _ in found}


def declared(extra: str) -> list[str]:
    """Return the requirements of ltrain in pyproject.toml; the installed metadata may be older."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"][extra] if extra else project["dependencies"])


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_collect_installs_nothing_of_the_trainer() -> None:
    names = closure("collect")
    assert {"chdb", "polars", "starlette", "jinja2", "uvicorn"} <= names
    assert names & HEAVY == set()
    assert closure("train") >= names | {"torch", "verl", "aiohttp", "httpx"}


def test_pip_selects_an_instrumentation_first() -> None:
    """pip 23.2 to 24.2 else find no combination where an index lacks a part of a release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = map(Requirement, project["dependencies"])
    threading = next(each for each in required if each.name.endswith("instrumentation-threading"))
    assert "==" in {each.operator for each in threading.specifier}
    assert threading.specifier.contains("0.66b1")


@pytest.fixture(scope="module")
def collecting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that have only the packages of `ltrain[collect]`."""
    names = closure("collect") | {"ltrain"}
    hidden = sorted(
        top
        for top, owners in metadata.packages_distributions().items()
        if not {normalized(owner) for owner in owners} & names
    )
    assert {"torch", "httpx", "verl"} <= set(hidden)
    folder = tmp_path_factory.mktemp("collect")
    (folder / "sitecustomize.py").write_text(BLOCKED.format(names=set(hidden)))
    return os.environ | {"PYTHONPATH": str(folder), "LTRAIN_HOME": str(folder / "home")}


def ltrain(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ltrain", *arguments],
        cwd=Path(environ["PYTHONPATH"]),
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_collect_imports_what_its_commands_need(collecting: dict[str, str]) -> None:
    command = [sys.executable, "-c", wheel_check.COLLECTOR]
    done = subprocess.run(command, env=collecting, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_collect_queries_a_store(collecting: dict[str, str]) -> None:
    (Path(collecting["LTRAIN_HOME"]) / "store").mkdir(parents=True)
    done = ltrain(collecting, "sql", "SELECT 1 AS one", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"one": 1}]


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("run", "ltrain.toml", "--model", "m"), "train"),
        (("sft", "ltrain.toml", "--model", "m"), "train"),
        (("demo",), "train"),
        (("serve", "m"), "serve"),
        (("policy", "list"), "serve"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_other_commands_name_their_extra(
    collecting: dict[str, str], command: tuple[str, ...], extra: str
) -> None:
    done = ltrain(collecting, *command)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ltrain: This command needs the extra `{extra}`: ")
    assert f"[{extra}]" in line.partition("Install it with: pip install ")[2]


def check_wheels(*wheels: Path) -> subprocess.CompletedProcess[str]:
    """Run `make dist-check`; its environment takes dependencies from this one, ltrain does not."""
    environ = {
        **os.environ,
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": sysconfig.get_path("purelib"),
    }
    command = [sys.executable, "-m", "setup.wheel_check", *map(str, wheels)]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600
    )


@pytest.mark.nightly
def test_the_check_of_a_release_passes_with_the_wheel(wheel: Path) -> None:
    done = check_wheels(wheel)
    python = sys.version.split()[0]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{wheel.name} works on Python {python}",
        f"{wheel.name}[collect] works on Python {python}",
    ]


@pytest.mark.nightly
def test_the_check_of_a_release_refuses_a_wheel_that_lacks_a_module(
    wheel: Path, tmp_path: Path
) -> None:
    broken = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(broken, "w") as target:
        for name in source.namelist():
            if name != "ltrain_instrument/rollouts.py":
                target.writestr(name, source.read(name))
    done = check_wheels(broken)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No module named 'ltrain_instrument.rollouts'" in done.stderr


def test_the_check_of_a_release_needs_one_wheel(wheel: Path) -> None:
    done = check_wheels(wheel, wheel)
    assert (done.returncode, done.stdout) == (1, "")
    expected = "Found 2 wheels. Build one with `make dist`, or name an existing one.\n"
    assert done.stderr == expected
