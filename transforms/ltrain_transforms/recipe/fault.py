"""Describe each fault of a recipe in one sentence: the key, its value, and what is allowed."""

import re
from typing import Any

from pydantic import BaseModel, ValidationError

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.recipe.selection import FailedCounts

UNION_MEMBERS = (FailedCounts.__name__, "literal['drop']")
"""Parts that pydantic adds to the location of a key with several types."""

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

EXAMPLES = {
    "policy": (
        "names the model that is trained",
        '[[policy]]\n      name = "policy"',
    ),
    "reward": (
        "names what the policy is rewarded for",
        '[[reward]]\n      name = "score"\n      evaluation = "reward"',
    ),
}
"""The sections that every recipe has: the purpose of each, and lines that may be added."""

ErrorDetails = dict[str, Any]


def describe_error(model: type[BaseModel], error: ValidationError) -> str:
    """Return a sentence for each fault: one fault on the same line, several on a line each."""
    errors = sorted(_independent([dict(one) for one in error.errors()]), key=_priority)
    first: dict[tuple[int | str, ...], ErrorDetails] = {}
    for one in errors:  # a key with several types has an error for each of them
        first.setdefault(_location(one), one)
    messages = [_message(model, one) for one in first.values()]
    if len(messages) == 1:
        return messages[0]
    return "\n  ".join((f"{len(messages)} faults:", *messages))


def _independent(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out consequences of other errors.

    A list is too short because its items have errors; a default that depends on a faulty section
    cannot be computed.
    """
    locations = [error["loc"] for error in errors]

    def is_consequence(error: ErrorDetails) -> bool:
        own = error["loc"]
        return error["type"] == "default_factory_not_called" or (
            error["type"] == "too_short"
            and any(len(one) > len(own) and one[: len(own)] == own for one in locations)
        )

    return [error for error in errors if not is_consequence(error)]


def _priority(error: ErrorDetails) -> int:
    """Return the place in the list: unknown keys first, since they cause missing keys."""
    if error["type"] == "extra_forbidden":
        return 0
    return 1 if _choices(error) else 2


def _location(error: ErrorDetails) -> tuple[int | str, ...]:
    return tuple(part for part in error["loc"] if part not in UNION_MEMBERS)


def _message(model: type[BaseModel], error: ErrorDetails) -> str:
    location = _location(error)
    where, value = ".".join(map(str, location)), error["input"]
    if error["type"] == "extra_forbidden":
        if new := OLD_KEYS.get(".".join(part for part in location if isinstance(part, str))):
            return f"{where}: `{location[-1]}` is now `{new}`."
        section = _section(model, location[:-1])
        known = [field.alias or name for name, field in section.model_fields.items()]
        return f"{where}: {UnknownName('key', str(location[-1]), known)}"
    if error["type"] == "value_error":  # our own message, to which pydantic adds a label
        message = error["msg"].removeprefix("Value error, ")
        return f"{where}: {message}" if where else message
    if error["type"] in ("missing", "too_short") and where in EXAMPLES:
        purpose, lines = EXAMPLES[where]
        return f"{where}: The recipe has no [[{where}]], which {purpose}. Add:\n      {lines}"
    if error["type"] == "missing":
        return f"{where}: The key is required. Add a line `{location[-1]} = …`."
    if error["type"] == "tuple_type":
        form = f"tables, [[{where}]] each" if isinstance(value, dict) else "a list in brackets"
        return f"{where}: It must be {form}. Given: {value!r}."
    if choices := _choices(error):
        return f"{where}: {UnknownName('value', value, choices)}"
    return f"{where}: {error['msg']}. Given: {value!r}."


def _choices(error: ErrorDetails) -> list[str]:
    """Return the allowed words where another one was given."""
    if error["type"] not in ("enum", "literal_error") or not isinstance(error["input"], str):
        return []
    return re.findall(r"'([^']*)'", error["ctx"]["expected"])


def _section(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the section of `model` that contains `location`."""
    sections = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    for part in location:
        if not isinstance(part, str) or part not in sections:
            continue
        inner = sections[part]
        arguments = (inner, *getattr(inner, "__args__", ()))
        section = next(
            (a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), None
        )
        if section is None:
            return model
        return _section(section, location[location.index(part) + 1 :])
    return model
