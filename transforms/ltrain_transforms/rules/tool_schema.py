"""Checks of tool requests against the offered tools: their names and their JSON schemas.

The offered tools are the definitions in the LLM request, in the shape of OpenAI, Anthropic or the
gen_ai conventions. A call without definitions or without tool requests cannot be checked.
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

from ltrain_transforms.traces import FAILURES, parse_json, read_messages, tool_requests

FaultCounts = tuple[int | None, int | None]
"""How many requests name no offered tool, and how many break their tool's schema."""
Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]
"""Takes a validator, the value of a keyword, an instance and the schema; yields the errors."""

CACHED_SCHEMAS = 1024
"""Compiled schemas in the cache: an agent has a few, and compiling one costs as much as 50 checks.
"""
MAX_SUBSCHEMAS = 1_000
"""Objects and booleans that a schema may have: the metaschema takes 0.6 ms for each."""
MAX_STEPS = 50_000
"""Steps to check one answer, less than a second; a request of 500 rows with ten fields takes
40,000. A schema with a reference to itself in each of two branches needs 2^depth."""
PATTERN_STEPS = 20
"""Steps that one search by Polars counts as; it takes 200 µs."""
_steps_left: ContextVar[int] = ContextVar("steps left", default=MAX_STEPS)


class UnusableSchema(ValueError):
    """A schema that needs too many steps, or refers to another document."""


def _spend(steps: int) -> None:
    left = _steps_left.get() - steps
    _steps_left.set(left)
    if left < 0:
        raise UnusableSchema("it needs too many steps")


def _counted(check: Keyword) -> Keyword:
    """Return `check` with a cost: one step a call, and one for each entry of its arguments."""

    def counted(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterable[ValidationError] | None:
        sizes = [len(one) for one in (value, instance) if isinstance(one, dict | list)]
        _spend(1 + sum(sizes))
        return check(validator, value, instance, schema)

    return counted


def _pattern(_: Any, pattern: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    """Search with Polars, whose patterns take linear time; a pattern it cannot compile passes."""
    if isinstance(pattern, str) and isinstance(instance, str):
        _spend(PATTERN_STEPS)
        matched = pl.select(pl.lit(instance).str.contains(pattern, strict=False)).item()
        if matched is False:
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
    """Check additional properties, except in a schema with `patternProperties`."""
    if "patternProperties" not in schema:
        yield from DRAFT["additionalProperties"](validator, allowed, instance, schema) or ()


def _local(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Follow a reference within the document; another document is not counted in steps."""
    if not str(reference).startswith("#"):
        raise UnusableSchema("it refers to another document")
    yield from DRAFT["$ref"](validator, reference, instance, schema) or ()


def _ignored(*_: Any) -> None:
    """Accept any value."""


DRAFT: Mapping[str, Keyword] = Draft202012Validator.VALIDATORS
BOUNDED: Mapping[str, Keyword] = {
    "$ref": _local,
    "$dynamicRef": _local,
    "additionalProperties": _additional,
    "pattern": _pattern,
    "patternProperties": _ignored,
    "unevaluatedItems": _ignored,
    "unevaluatedProperties": _ignored,
    "uniqueItems": _unique,
}
"""Keywords that jsonschema checks in more than linear time: with Python's regular expressions, by
comparing pairs, or through references that no step counts."""
BoundedValidator = extend(
    Draft202012Validator, {name: _counted(check) for name, check in {**DRAFT, **BOUNDED}.items()}
)
"""Validates against schemas that agents write, in a bounded number of steps."""


def count_faulty_requests(offered: str | None, output: str | None) -> FaultCounts:
    """Count the faulty tool requests of one answer; None where they cannot be checked."""
    requests = tool_requests(read_messages(output))
    schemas = _schemas(offered) if offered and requests else {}
    if not schemas:
        return None, None
    known = [request for request in requests if request.name in schemas]
    _steps_left.set(MAX_STEPS)
    invalid = [
        request for request in known if not _is_valid(schemas[str(request.name)], request.arguments)
    ]
    return len(requests) - len(known), len(invalid)


def matches_schema(schema: str, value: Any) -> bool:
    """Return whether `value`, or the JSON in it, is an instance of the JSON schema `schema`."""
    _steps_left.set(MAX_STEPS)
    return _is_valid(schema, value)


def _is_valid(schema: str, value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False
    try:
        validator = _validator(schema)
        return validator is None or bool(validator.is_valid({} if value is None else value))
    # broad: an agent's schema may refer to itself or to nothing, or hold numbers that cannot be
    # compiled; every value counts as valid against such a schema
    except FAILURES:
        return True


def schema_error(schema: Mapping[str, Any]) -> str | None:
    """Return why a JSON schema is invalid; None where it is valid."""
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        return str(error.message)
    return None


@lru_cache(CACHED_SCHEMAS)
def _schemas(offered: str) -> dict[str, str]:
    """Return the schema of each offered tool's arguments, by the tool's name."""
    entries = parse_json(offered)
    if not isinstance(entries, list):
        return {}
    return dict(_names_and_schemas(tool for tool in entries if isinstance(tool, dict)))


def _names_and_schemas(tools: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    for tool in tools:
        function = tool.get("function")
        definition = function if isinstance(function, dict) else tool
        schema = definition.get("parameters") or definition.get("input_schema") or {}
        schema = parse_json(schema)
        if definition.get("name"):
            yield str(definition["name"]), json.dumps(schema if isinstance(schema, dict) else {})


@lru_cache(CACHED_SCHEMAS)
def _validator(schema: str) -> Draft202012Validator | None:
    """Compile a schema; None where it is invalid or too large, so every value counts as valid."""
    if sum(map(schema.count, ("{", "true", "false"))) > MAX_SUBSCHEMAS:
        return None
    document = json.loads(schema, object_hook=_without_identity)
    if schema_error(document):
        return None
    return BoundedValidator(document, registry=Registry())  # an empty registry fetches nothing


def _without_identity(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without `$schema` and `$id`: either would select an unbounded validator."""
    return {
        name: value
        for name, value in fields.items()
        if name not in ("$id", "$schema") or not isinstance(value, str)
    }
