"""The container files copy what exists, run commands that exist, and start as a normal user."""

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ltrain.cli import app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "containers"
FILES = sorted(FOLDER.glob("*.Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
PORTS = {"4317", "4318", "8123", "8484"}


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    value: str


def instructions(path: Path) -> list[Instruction]:
    """Return the instructions of a container file; continued lines are joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n", " ", "\n".join(lines))
    pairs = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [Instruction(name, " ".join(value.split())) for name, value in pairs]


def last(path: Path, name: str) -> str:
    return [each.value for each in instructions(path) if each.name == name][-1]


def ignored() -> list[str]:
    return [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]


def health_urls(text: str) -> list[str]:
    return re.findall(r"http://127\.0\.0\.1:\d+/[\w./]*", text)


each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_there_is_one_for_the_collector_and_one_for_the_trainer() -> None:
    assert [path.name for path in FILES] == ["collect.Dockerfile", "train.Dockerfile"]


@each_file
def test_the_base_is_pinned(path: Path) -> None:
    bases = {each.value.partition(" AS ")[0] for each in instructions(path) if each.name == "FROM"}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", bases.pop())


@each_file
def test_it_copies_what_the_build_context_has(path: Path) -> None:
    sources = [
        source
        for each in instructions(path)
        if each.name == "COPY" and not each.value.startswith("--from")
        for source in each.value.split()[:-1]
    ]
    kept = [each.removeprefix("!") for each in ignored()]
    assert sources and all((ROOT / each).exists() for each in kept)
    assert set(sources) <= {".", *kept}


def test_the_collector_has_every_package_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    folders = {each.partition("/")[0] for each in packages}
    files = {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"}
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["path"].partition("/")[0]
    copied = {
        source
        for each in instructions(FOLDER / "collect.Dockerfile")
        if each.name == "COPY" and not each.value.startswith("--from")
        for source in each.value.split()[:-1]
    }
    assert copied == folders | files | {hook}
    assert "collect" in project["project"]["optional-dependencies"]


@each_file
def test_its_commands_can_be_parsed_and_targets_exist(path: Path) -> None:
    text = (ROOT / "Makefile").read_text()
    for each in instructions(path):
        if each.name == "RUN":
            assert shlex.split(each.value)
            for target in re.findall(r"\bmake ([a-z]+)", each.value):
                if "apt-get" not in each.value:
                    assert re.search(rf"^{target}:", text, re.MULTILINE)
            for file in re.findall(r"--constraint (\S+)", each.value):
                assert (ROOT / file).is_file()


@each_file
def test_it_runs_ltrain_as_a_user_that_owns_its_volume(path: Path) -> None:
    assert last(path, "USER") == "10001:10001"
    names = [each.name for each in instructions(path)]
    assert "RUN" not in names[names.index("USER") :]
    volume = last(path, "VOLUME")
    text = path.read_text()
    assert f"--owner ltrain --group ltrain --mode 0700 {volume}" in text
    assert f"LTRAIN_HOME={volume}" in text
    assert json.loads(last(path, "ENTRYPOINT")) == ["ltrain"]
    arguments = json.loads(last(path, "CMD"))
    assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0
    assert "--host" not in arguments


@each_file
def test_its_health_is_that_of_a_server_that_it_exposes(path: Path) -> None:
    (check,) = (each.value for each in instructions(path) if each.name == "HEALTHCHECK")
    command = json.loads(check.partition(" CMD ")[2])
    assert command[:2] == ["python", "-c"]
    compile(command[2], str(path), "exec")
    (url,) = health_urls(command[2])
    port = url.split(":")[2].partition("/")[0]
    assert url.endswith("/health") and port in last(path, "EXPOSE").split()


@each_file
def test_the_license_is_that_of_the_project(path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'org.opencontainers.image.licenses="{project["license"]}"' in path.read_text()


def test_compose_publishes_ports_of_the_image_on_loopback() -> None:
    published = COMPOSE["services"]["collector"]["ports"]
    assert {each.rpartition(":")[2] for each in published} == PORTS
    assert set(last(FOLDER / "collect.Dockerfile", "EXPOSE").split()) == PORTS
    assert all(each.startswith("127.0.0.1:") for each in published)


@pytest.mark.parametrize("name", ["collector", "ui"])
def test_compose_runs_commands_that_exist_without_rights(name: str) -> None:
    service = COMPOSE["services"][name]
    command = service["command"]
    assert command[1:] == ["--host", "0.0.0.0"]
    help_text = CliRunner().invoke(app, [command[0], "--help"], env={"COLUMNS": "200"}).output
    assert "--host" in help_text
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["volumes"] == [f"home:{last(FOLDER / 'collect.Dockerfile', 'VOLUME')}"]


def test_compose_builds_the_collector_and_shares_its_loopback_with_the_pages() -> None:
    collector, ui = COMPOSE["services"]["collector"], COMPOSE["services"]["ui"]
    built = (FOLDER / collector["build"]["context"]).resolve() / collector["build"]["dockerfile"]
    assert built == FOLDER / "collect.Dockerfile"
    assert ui["network_mode"] == "service:collector"
    (url,) = health_urls(ui["healthcheck"]["test"][-1])
    assert (ROOT / "ui" / "ltrain_ui" / url.partition("8484/")[2]).is_file()
