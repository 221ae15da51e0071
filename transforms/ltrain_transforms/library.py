"""The ready rules: one TOML file a rule, which a recipe takes by name and may override.

`[[reward]] use = "tool-failed"` is that file's keys, with those of the recipe over them.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from ltrain_instrument.errors import UnknownName

FOLDER = files("ltrain_transforms") / "rules"


@cache
def names() -> tuple[str, ...]:
    """Give the names of all ready rules."""
    there = (entry.name for entry in FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in there if name.endswith(".toml")))


def text(name: str) -> str:
    """Give a ready rule as it is written.

    Raises:
        UnknownName: when there is none of that name.
    """
    if name not in names():
        raise UnknownName("ready rule", name, names())
    return (FOLDER / f"{name}.toml").read_text("utf-8")


def about(name: str) -> str:
    """Give the comment that a ready rule begins with: what it is for, and its source."""
    lines = text(name).splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def overridden(given: dict[str, Any]) -> dict[str, Any]:
    """Put the keys of `given` over those of the ready rule that it names in `use`.

    Its parameters are overridden one by one.

    Raises:
        UnknownName: when there is no such rule.
    """
    ready = tomllib.loads(text(str(given["use"])))
    params = {**ready.get("params", {}), **given.get("params", {})}
    return {"name": given["use"], **ready, **given, "params": params}
