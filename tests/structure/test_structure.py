"""Rules for the structure and the names of the code."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "instrument",
    "collector",
    "transforms",
    "train",
    "episodes",
    "ui",
    "cli",
    "examples",
    "setup",
)
VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
PLAIN = (*FOLDERS, "benchmarks", "tests")
"""The folders whose docstrings and names are checked."""
BAD_STARTS = {"Give", "Gives", "Say", "Says", "Tell", "Tells"}
BAD_NAMES = {"said", "told", "asked", "given"}
PACKAGES = sorted(path.parent for path in ROOT.glob("*/ltrain*/__init__.py"))
MODULES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "repositories" not in path.parts  # the code that the agents of an example repair
]


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_no_module_has_a_vague_name() -> None:
    assert [path for path in MODULES if path.stem in VAGUE] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_at_most_two_public_functions_of_a_package_share_a_name(package: Path) -> None:
    modules: dict[str, list[str]] = {}
    backends = {*package.glob("learner/*_backend/backend.py")}  # of one protocol
    for path in sorted({*package.rglob("*.py")} - backends):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                modules.setdefault(node.name, []).append(path.stem)
    assert {name: where for name, where in modules.items() if len(where) > 2} == {}


def test_every_module_has_a_docstring() -> None:
    missing = [
        path for path in MODULES if path.read_text() and not path.read_text().startswith('"')
    ]
    assert missing == []


def test_json_is_parsed_by_public_functions() -> None:
    private = re.compile(r"\b(scan_once|scanstring|make_scanner|c_make_encoder|_default_decoder)\b")
    assert [path for path in MODULES if private.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("ltrain", {"torch", "polars", "pydantic", "chdb", "typer"}),
        ("ltrain.cli", {"torch", "polars", "pydantic", "chdb", "verl", "ray", "httpx"}),
        ("ltrain_collector.schema", {"polars", "chdb", "orjson", "uvicorn", "starlette", "jwt"}),
        ("ltrain_train", {"torch", "polars", "tinker", "renderers", "verifiers"}),
        (
            "ltrain_train.gateway.app",
            {"torch", "verl", "ray", "transformers", "tinker", "renderers"},
        ),
        ("ltrain_train.rollout.runner", {"torch", "verl", "ray", "transformers"}),
        ("ltrain_train.policy.versions", {"torch", "verl", "ray", "transformers"}),
        ("ltrain_train.updates.stored_traces", {"torch", "verl", "ray", "transformers"}),
    ],
)
def test_import_stays_light(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_package_is_marked_as_typed() -> None:
    assert len(PACKAGES) == 7
    assert [path.name for path in PACKAGES if not (path / "py.typed").exists()] == []


def plain_modules() -> list[Path]:
    """Return the modules of the folders in `PLAIN`, without test fixtures."""
    modules = [path for folder in PLAIN for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(modules) > 50
    return [path for path in modules if "fixtures" not in path.parts]


def first_words(tree: ast.Module) -> Iterator[str]:
    """Yield the first word of each docstring, including those below constants and fields."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(str() as text)) if text.split():
                yield text.split()[0].rstrip(".,:;")


def declared_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of variables, parameters, attributes, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.AnnAssign(target=ast.Name(name)) | ast.arg(name):
                yield name
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.alias(asname=str(name)):
                yield name


def test_docstrings_start_with_a_plain_verb() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in plain_modules()
        for word in first_words(ast.parse(path.read_text()))
        if word in BAD_STARTS
    }
    assert found == set(), "start with Return, Yield, Write, Raise, Check, ..."


def test_names_are_nouns_of_the_field() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in plain_modules()
        for name in declared_names(ast.parse(path.read_text()))
        if name in BAD_NAMES
    }
    assert found == set(), "name what the value is"
