"""Requests for tools against the tools that were offered: by name, and by their JSON schema.

Offered are the definitions that the request carried, in OpenAI's, Anthropic's or the gen_ai
conventions' shape. A call that carried none, or that asks for no tool, cannot be judged.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import orjson
import polars as pl
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry

from ltrain_transforms.dialects.messages import tool_requests
from ltrain_transforms.untrusted import FAILURES, parse_json

Faults = tuple[int | None, int | None]
"""How many requests name no offered tool, and how many break their tool's schema."""
Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]
"""Takes a validator, the value of a keyword, an instance and the schema; yields what is wrong."""

KEPT = 1024
"""Schemas that stay compiled: an agent has a few, and compiling one takes as long as 50 checks."""
MOST_SUBSCHEMAS = 1_000
"""Objects and booleans in a schema that is used: the metaschema takes 0.6 ms for each."""
MOST_STEPS = 50_000
"""Steps that checking one answer may take, below a second; a request of 500 rows with ten fields
takes 40,000. A schema can ask for 2^depth, by a reference to itself in each of two branches."""
PATTERN_STEPS = 20
"""Of one search by Polars, which takes 200 µs."""
_left: ContextVar[int] = ContextVar("steps left", default=MOST_STEPS)


class Unusable(ValueError):
    """A schema that needs too many steps, or another document."""


def _spend(steps: int) -> None:
    left = _left.get() - steps
    _left.set(left)
    if left < 0:
        raise Unusable("too many steps")


def _counted(check: Keyword) -> Keyword:
    """Return a keyword whose every check spends a step, and one an entry of what it looks at."""

    def counted(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterable[ValidationError] | None:
        sizes = [len(one) for one in (value, instance) if isinstance(one, dict | list)]
        _spend(1 + sum(sizes))
        return check(validator, value, instance, schema)

    return counted


def _pattern(_: Any, pattern: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    """Search by Polars' regular expressions, which take linear time; what is none is ignored."""
    if isinstance(pattern, str) and isinstance(instance, str):
        _spend(PATTERN_STEPS)
        found = pl.select(pl.lit(instance).str.contains(pattern, strict=False)).item()
        if found is False:
            yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _unique(_: Any, unique: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    """Compare items as JSON, in linear time."""
    if unique is True and isinstance(instance, list):
        written = {orjson.dumps(item, option=orjson.OPT_SORT_KEYS) for item in instance}
        if len(written) < len(instance):
            yield ValidationError("its items are not unique")


def _additional(
    validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """Check properties that no other keyword names, where that needs no pattern."""
    if "patternProperties" not in schema:
        yield from DRAFT["additionalProperties"](validator, allowed, instance, schema) or ()


def _local(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Follow a reference within the document; other documents have limits of their own."""
    if not str(reference).startswith("#"):
        raise Unusable("it refers to another document")
    yield from DRAFT["$ref"](validator, reference, instance, schema) or ()


def _ignored(*_: Any) -> None:
    """Hold nothing against a value."""


DRAFT: Mapping[str, Keyword] = Draft202012Validator.VALIDATORS
OWN: Mapping[str, Keyword] = {
    "$ref": _local,
    "$dynamicRef": _local,
    "additionalProperties": _additional,
    "pattern": _pattern,
    "patternProperties": _ignored,
    "unevaluatedItems": _ignored,
    "unevaluatedProperties": _ignored,
    "uniqueItems": _unique,
}
"""Keywords that jsonschema checks in more than linear time: by Python's regular expressions, in
pairs, or by references that no step counts."""
Bounded = extend(
    Draft202012Validator, {name: _counted(check) for name, check in {**DRAFT, **OWN}.items()}
)
"""Checks schemas that agents write, in a bounded number of steps."""


def faults(offered: str | None, output: str | None) -> Faults:
    """Count the faulty requests of one answer; null where it cannot be judged."""
    messages = parse_json(output)
    requests = tool_requests(messages if isinstance(messages, list) else None)
    schemas = _schemas(offered) if offered and requests else {}
    if not schemas:
        return None, None
    known = [request for request in requests if request.get("name") in schemas]
    _left.set(MOST_STEPS)
    broken = [
        request
        for request in known
        if not _fits(schemas[str(request["name"])], request.get("arguments"))
    ]
    return len(requests) - len(known), len(broken)


def fits(schema: str, value: Any) -> bool:
    """Return whether `value`, or the JSON in it, is an instance of the JSON schema `schema`."""
    _left.set(MOST_STEPS)
    return _fits(schema, value)


def _fits(schema: str, value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False
    try:
        validator = _validator(schema)
        return validator is None or bool(validator.is_valid({} if value is None else value))
    # broad: a schema that an agent offers may refer to itself or to nothing, or hold numbers that
    # nobody can compile; nothing can be held against a value by such a one
    except FAILURES:
        return True


def check_schema(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a JSON schema; null where it can be used."""
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        return str(error.message)
    return None


@lru_cache(KEPT)
def _schemas(offered: str) -> dict[str, str]:
    """Return the schema of each offered tool's arguments, by the tool's name."""
    listed = parse_json(offered)
    tools = [tool for tool in listed if isinstance(tool, dict)] if isinstance(listed, list) else []
    return dict(_named(tools))


def _named(tools: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    for tool in tools:
        function = tool.get("function")
        said = function if isinstance(function, dict) else tool
        schema = said.get("parameters") or said.get("input_schema") or {}
        schema = parse_json(schema)
        if said.get("name"):
            yield str(said["name"]), json.dumps(schema if isinstance(schema, dict) else {})


@lru_cache(KEPT)
def _validator(schema: str) -> Draft202012Validator | None:
    """Compile a schema; null where it is none or too large: nothing is held against a value."""
    if sum(map(schema.count, ("{", "true", "false"))) > MOST_SUBSCHEMAS:
        return None
    document = json.loads(schema, object_hook=_anonymous)
    if check_schema(document):
        return None
    return Bounded(document, registry=Registry())  # an empty one: nothing is fetched


def _anonymous(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without its draft and address: either leads to checks that are not ours."""
    return {
        name: value
        for name, value in fields.items()
        if name not in ("$id", "$schema") or not isinstance(value, str)
    }
