"""What is wrong with a recipe, as a sentence: where, what was given, what is allowed."""

import re
from typing import Any

from pydantic import BaseModel, ValidationError

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.recipe.filter import FailedCounts

UNION_MEMBERS = (FailedCounts.__name__, "literal['drop']")
"""What pydantic adds to the place of a key that may be of several types."""

OLD_KEYS = {
    "source.idle": "idle_timeout",
    "rollout.deadline": "timeout",
    "rollout.per_task": "rollouts_per_task",
    "policy.tokens": "token_source",
    "reward.starts_at": "initial_potential",
    "reward.ends_at": "final_potential",
    "reward.at_least": "min",
    "reward.at_most": "max",
    "credit.outcome.among": "peers",
    "filter.keep": "allow",
    "filter.groups": "max_groups",
    "train.settle": "span_timeout",
    "train.weigh": "loss_weighting",
}
"""Old keys, by section, with their new names: refused, and named in the message."""

ErrorDetails = dict[str, Any]


def describe_error(model: type[BaseModel], error: ValidationError) -> str:
    """Say the fault that explains most, and how many others there are."""
    faults = _apart([dict(fault) for fault in error.errors()])
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return _said(model, min(faults, key=_weight)) + more


def _apart(faults: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out lists that are too short only because what is in them is at fault."""
    places = [fault["loc"] for fault in faults]

    def follows(fault: ErrorDetails) -> bool:
        own = fault["loc"]
        return fault["type"] == "too_short" and any(
            len(place) > len(own) and place[: len(own)] == own for place in places
        )

    return [fault for fault in faults if not follows(fault)]


def _weight(fault: ErrorDetails) -> int:
    """An unknown key is why another is missing; a misspelt word is no table."""
    if fault["type"] == "extra_forbidden":
        return 0
    return 1 if _choices(fault) else 2


def _said(model: type[BaseModel], fault: ErrorDetails) -> str:
    place = tuple(part for part in fault["loc"] if part not in UNION_MEMBERS)
    where, given = ".".join(map(str, place)), fault["input"]
    if fault["type"] == "extra_forbidden":
        if new := OLD_KEYS.get(".".join(part for part in place if isinstance(part, str))):
            return f"{where}: `{place[-1]}` is now `{new}`."
        section = _section(model, place[:-1])
        known = [field.alias or name for name, field in section.model_fields.items()]
        return f"{where}: {UnknownName('key', str(place[-1]), known)}"
    if fault["type"] == "value_error":  # a sentence of ours, which pydantic puts a label on
        return f"{where}: {fault['msg'].removeprefix('Value error, ')}"
    if fault["type"] == "missing":
        return f"{where}: {fault['msg']}."
    if fault["type"] == "tuple_type":
        form = f"tables, [[{where}]] each" if isinstance(given, dict) else "a list in brackets"
        return f"{where}: It must be {form}. Given: {given!r}."
    if choices := _choices(fault):
        return f"{where}: {UnknownName('value', given, choices)}"
    return f"{where}: {fault['msg']}. Given: {given!r}."


def _choices(fault: ErrorDetails) -> list[str]:
    """Give the words that are allowed where another one was given."""
    if fault["type"] not in ("enum", "literal_error") or not isinstance(fault["input"], str):
        return []
    return re.findall(r"'([^']*)'", fault["ctx"]["expected"])


def _section(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Find the section of `model` that `location` points into."""
    sections = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    for part in location:
        if not isinstance(part, str) or part not in sections:
            continue
        inner = sections[part]
        arguments = (inner, *getattr(inner, "__args__", ()))
        found = next(
            (a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), None
        )
        if found is None:
            return model
        return _section(found, location[location.index(part) + 1 :])
    return model
