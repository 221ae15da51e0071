"""A short module that only one neighbour imports is a part of that neighbour."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("collector", "episodes", "instrument", "train", "transforms", "ui")
SHORT = 100
"""Lines below which a module joins its only user."""
LONGEST = 400
"""Lines that the user and its new part have at most."""
FAMILIES = (
    "ltrain_collector.sources.",
    "ltrain_train.gateway.apis.",
    "ltrain_transforms.annotations.",
    "ltrain_transforms.dialects.",
    "ltrain_transforms.estimators.",
    "ltrain_transforms.exports.",
    "ltrain_ui.pages.",
)
"""Folders with a module for each source, API, platform, dialect, estimator, format or page."""
APART = {
    "ltrain_collector.transfer.from_server": "another kind of source, as importing is of files",
    "ltrain_collector.transfer.lightning": "the format of another project",
    "ltrain_collector.transfer.survey": "the counts of a dry run, of both kinds of sources",
    "ltrain_train.evaluation.replay": "workers import its agent",
    "ltrain_train.sandboxes.cgroup": "an interface of the kernel with two versions",
    "ltrain_train.sandboxes.template": "a kind of sandbox, as bubblewrap and container",
    "ltrain_train.gateway.admin_routes": "the routes of one role, as the other modules of routes",
    "ltrain_transforms.calls.task_keys": "the one declaration of what an equal question is",
    "ltrain_transforms.rules.unicode_scripts": "a table of numbers",
    "ltrain_transforms.show.pages.headline": "words on an execution, as credit has",
    "ltrain_transforms.show.pages.call_facts": "words on a call, as headline has on an execution",
    "ltrain_transforms.show.pages.call_window": "a computation of its own, tested by itself",
}
"""Other modules that stay, and the reason."""


def module_paths() -> dict[str, Path]:
    """Return the path of each module; a face has the name of its folder."""
    paths = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT / package).with_suffix("").parts)
            paths[name.removesuffix(".__init__")] = path
    return paths


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each imported name with its module, wherever in the file the import is."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def only_users(paths: dict[str, Path]) -> dict[str, str]:
    """Return the modules that one other module imports, directly or from faces, and that module."""
    faces = {
        name: {imported: module for module, imported in imports(path)}
        for name, path in paths.items()
        if path.name == "__init__.py"
    }

    def origin(module: str, name: str) -> str:
        while f"{module}.{name}" not in paths and name in faces.get(module, {}):
            module = faces[module][name]
        return f"{module}.{name}" if f"{module}.{name}" in paths else module

    users: dict[str, set[str]] = {}
    for user, path in paths.items():
        if "." not in user or user not in faces:
            for module, name in imports(path):
                users.setdefault(origin(module, name), set()).add(user)
    return {module: next(iter(names)) for module, names in users.items() if len(names) == 1}


def test_a_short_module_with_one_user_in_its_folder_joins_it() -> None:
    paths = module_paths()
    lengths = {name: len(path.read_text().splitlines()) for name, path in paths.items()}
    crumbs = {
        module: user
        for module, user in only_users(paths).items()
        if module.count(".") > 1
        and user.rpartition(".")[0] == module.rpartition(".")[0]
        and lengths[module] < SHORT
        and lengths[module] + lengths[user] <= LONGEST
        and not module.startswith(FAMILIES)
    }
    assert crumbs.keys() <= APART.keys(), crumbs
