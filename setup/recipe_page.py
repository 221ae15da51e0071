"""The page about the keys of the recipe, generated from its pydantic models."""

from collections.abc import Iterator
from enum import Enum, StrEnum
from importlib import import_module
from pkgutil import iter_modules
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from setup.docstrings import name_docs
from setup.markdown import code, table

from ltrain_transforms import recipe

SCALARS = {Any: "anything", str: "text", int: "integer", float: "number", bool: "boolean"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


KEY_COLUMNS = ("key", "type and default", "meaning")


def recipe_lines() -> list[str]:
    modules = (
        import_module(f"{recipe.__name__}.{each.name}") for each in iter_modules(recipe.__path__)
    )
    docs = dict(pair for module in modules for pair in name_docs(module).items())
    return [
        "# The recipe",
        "One TOML file selects the executions, agents, rules, credit and filters of a training. "
        "It is checked on load: an unknown or missing key, a wrong type or an invalid rule is an "
        "error that names it. Every dataset, training span and checkpoint carries its digest. A "
        "key that is marked *budget* is not in the digest: a run continues when it is changed.",
        *_sections(recipe.Recipe, "", docs),
        "## Policy losses",
        "The values of `train.loss`. With `loss_weighting` other than `token`, a recipe is refused "
        "if its loss is marked *token*. [learner.md](learner.md) explains how they are weighted.",
        table(("loss", "what it computes", "weighting"), _losses()),
        "## KL estimators",
        "The values of `train.kl_estimator`. d is the log-probability of a sampled token under the "
        "policy minus that under the reference. See [Schulman's page]"
        "(http://joschu.net/blog/kl-approx.html).",
        table(("estimator", "what it computes"), _kl_estimators()),
        "## Peers",
        "The values of `credit.outcome.peers`:",
        table(("peers", "what is compared with what"), _choices(recipe.Peers, docs)),
        "## Rules",
        "A `[[reward]]` with `on` is a rule: it reads every call of that kind. `when` and "
        "`value` are SQL over the columns of [`calls`](tables.md#calls) and the derived columns of "
        "[rules.md](rules.md); aggregates and window functions are refused. `credit_to` names the "
        "call that is credited:",
        table(("credit_to", "who"), _choices(recipe.Credited, docs)),
        "## The judge",
        'A `[[reward]]` with `use = "judge"` is the score of a language model, which '
        "[rollouts.md](rollouts.md#a-judge) describes. These are its `params`:",
        table(
            KEY_COLUMNS,
            (_key(recipe.Judge, *each, docs) for each in recipe.Judge.model_fields.items()),
        ),
    ]


def _sections(section: type[BaseModel], path: str, docs: dict[str, str]) -> Iterator[str]:
    """Yield the text of each nested section, its keys before its own nested sections."""
    for name, field in section.model_fields.items():
        inner, many = _inner(field.annotation)
        if inner is None:
            continue
        full_name = f"{path}.{name}".lstrip(".")
        keys = [_key(inner, *item, docs) for item in inner.model_fields.items() if _is_key(item[1])]
        if keys:
            yield f"## `{'[[' if many else '['}{full_name}{']]' if many else ']'}`"
            yield from [inner.__doc__] if inner.__doc__ else []
            yield table(KEY_COLUMNS, keys)
        yield from _sections(inner, full_name, docs)


def _inner(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the section that an annotation names, if any, and whether it is a list of sections."""
    choices = [each for each in get_args(annotation) or (annotation,) if each is not NoneType]
    first = choices[0]
    if isinstance(first, type) and issubclass(first, BaseModel) and choices[1:] in ([], [...]):
        return first, get_origin(annotation) is tuple
    return None, False


def _is_key(field: FieldInfo) -> bool:
    return _inner(field.annotation)[0] is None


def _key(
    section: type[BaseModel], name: str, field: FieldInfo, docs: dict[str, str]
) -> tuple[str, str, str]:
    declared = (f"{each.__name__}.{name}" for each in section.__mro__)
    doc = next((docs[each] for each in declared if each in docs), "")
    if name in getattr(section, "budgets", set)():
        doc = f"{doc} *Budget.*"
    bounds = [
        f"{sign} {getattr(each, word):g}"
        for each in field.metadata
        for word, sign in BOUNDS.items()
        if hasattr(each, word)
    ]
    kind = ", ".join([_type(field.annotation), *bounds])
    default = _default(field)
    return f"`{field.alias or name}`", f"{kind}; {default}" if default else kind, doc


def _type(annotation: Any) -> str:
    inside: list[Any] = [each for each in get_args(annotation) if each not in (NoneType, ...)]
    origin = get_origin(annotation)
    if origin is Literal:
        return ", ".join(f'`"{each}"`' for each in inside)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f'`"{each.value}"`' for each in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        keys = (f"{n} = {_type(f.annotation)}" for n, f in annotation.model_fields.items())
        return f"`{{ {', '.join(keys)} }}`"
    if origin is tuple:
        return f"list of {_type(inside[0])}"
    if origin is dict:
        return f"table of {_type(inside[1])}"
    return SCALARS.get(annotation) or " or ".join(_type(each) for each in inside)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return ""  # its doc says how it depends on other keys
    return "" if field.default is None else code(_toml(field.default))


def _toml(value: Any) -> str:
    match value:
        case BaseModel():
            return _toml(value.model_dump())
        case dict():
            return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in value.items())} }}"
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case str():
            return f'"{value}"'
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _losses() -> Iterator[tuple[str, str, str]]:
    for name, loss in recipe.POLICY_LOSSES.items():
        weighting = f"*token*: {loss.needs_token_weighting}" if loss.needs_token_weighting else ""
        yield f"`{name}`", loss.doc, weighting


def _kl_estimators() -> Iterator[tuple[str, str]]:
    for name, doc in recipe.KL_ESTIMATORS.items():
        yield f"`{name}`", doc


def _choices(choices: type[StrEnum], docs: dict[str, str]) -> Iterator[tuple[str, str]]:
    for each in choices:
        yield f"`{each.value}`", docs[f"{choices.__name__}.{each.name}"]
