"""The ready rules: one TOML file a rule, which a recipe uses by name and may override.

`[[reward]] use = "tool-failed"` takes the keys of that file; keys in the recipe override them.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from ltrain_instrument.errors import UnknownName

FOLDER = files("ltrain_transforms.rules") / "ready"


@cache
def rule_names() -> tuple[str, ...]:
    """Return the names of all ready rules, sorted."""
    entries = (entry.name for entry in FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml")))


def rule_text(name: str) -> str:
    """Return the TOML text of a ready rule."""
    if name not in rule_names():
        raise UnknownName("ready rule", name, rule_names())
    return (FOLDER / f"{name}.toml").read_text("utf-8")


def rule_comment(name: str) -> str:
    """Return the comment at the start of a ready rule: its purpose and its source."""
    lines = rule_text(name).splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def apply_overrides(reward: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the ready rule that `use` names, overridden by those of `reward`.

    Parameters are overridden one by one.
    """
    ready = tomllib.loads(rule_text(str(reward["use"])))
    params = {**ready.get("params", {}), **reward.get("params", {})}
    return {"name": reward["use"], **ready, **reward, "params": params}
