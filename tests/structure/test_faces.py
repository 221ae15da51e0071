"""Each folder of a package has a face, its `__init__.py`, and nobody outside imports past it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "ltrain_instrument": ROOT / "instrument",
    "ltrain_collector": ROOT / "collector",
    "ltrain_transforms": ROOT / "transforms",
    "ltrain_train": ROOT / "train",
    "ltrain_episodes": ROOT / "episodes",
    "ltrain_ui": ROOT / "ui",
}
FOLDERS = sorted(
    path
    for package, root in PACKAGES.items()
    for path in (root / package).iterdir()
    if path.is_dir() and any(path.glob("*.py"))
)
USERS = [
    path
    for folder in (
        "instrument",
        "collector",
        "transforms",
        "train",
        "agents",
        "ui",
        "cli",
        "setup",
        "benchmarks",
    )
    for path in sorted((ROOT / folder).rglob("*.py"))
]
MOST = 20
"""Modules of one folder, beside its face."""


def _imported(path: Path) -> Iterator[str]:
    """Yield the full names of what a module imports, wherever in it the import is."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _past_a_face(path: Path) -> Iterator[str]:
    for name in _imported(path):
        package, *rest = name.split(".")
        if package not in PACKAGES or len(rest) < 3:
            continue
        folder = PACKAGES[package] / package / rest[0]
        if folder in FOLDERS and not path.is_relative_to(folder):
            yield name


def test_nobody_imports_past_a_face() -> None:
    found = {str(path.relative_to(ROOT)): list(_past_a_face(path)) for path in USERS}
    assert {path: names for path, names in found.items() if names} == {}


def _exported(face: Path) -> set[str]:
    """Return the names that a face imports for others in its `TYPE_CHECKING` block."""
    names = set()
    for node in ast.parse(face.read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            imports = [each for each in node.body if isinstance(each, ast.ImportFrom)]
            names |= {alias.name for each in imports for alias in each.names}
    return names


def test_what_others_import_is_named_by_the_face() -> None:
    missing = []
    for path in USERS:
        for name in _imported(path):
            package, *rest = name.split(".")
            if package not in PACKAGES or len(rest) != 2:
                continue
            folder = PACKAGES[package] / package / rest[0]
            if folder in FOLDERS and not path.is_relative_to(folder):
                missing += [name] if rest[1] not in _exported(folder / "__init__.py") else []
    assert missing == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}.{path.name}")
def test_a_folder_has_a_face_and_at_most_twenty_modules(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= MOST


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}.{path.name}")
def test_a_face_imports_its_names_on_first_use(folder: Path) -> None:
    eager = [
        node
        for node in ast.parse((folder / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
        and node.module not in ("typing", "ltrain_instrument.face")
    ]
    assert [ast.unparse(node) for node in eager] == []


def test_tests_mirror_the_packages() -> None:
    """Each folder of tests below a package's own is a folder of that package."""
    known = {(path.parent.name.removeprefix("ltrain_"), path.name) for path in FOLDERS}
    data = {"agents", "__pycache__"}
    found = {
        (root.name, path.name)
        for root in (ROOT / "tests" / name.removeprefix("ltrain_") for name in PACKAGES)
        for path in root.iterdir()
        if path.name not in data and any(path.glob("*.py"))
    }
    assert found - known == set()
