"""Requests for tools against the tools that were offered: by name, and by their JSON schema.

Offered are the definitions that the request carried, in OpenAI's, Anthropic's or the gen_ai
conventions' shape. A call that carried none, or that asks for no tool, cannot be judged.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import polars as pl
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry

from ltrain_transforms.dialects.messages import tool_requests
from ltrain_transforms.untrusted import parsed

Faults = tuple[int | None, int | None]
"""How many requests name no offered tool, and how many break their tool's schema."""

REFERENCE = re.compile(r'"\$\w*[rR]ef"')
MOST_REFERENCES = 16
"""References of a schema that is used: each may double the work of those before it."""
KEPT = 1024
"""Schemas that stay compiled: an agent has a few, and compiling one takes as long as 50 checks."""


def _matches(
    validator: Any, pattern: object, instance: object, schema: object
) -> Iterator[ValidationError]:
    """Search by Polars' regular expressions, which take linear time; what is none is ignored."""
    if isinstance(pattern, str) and isinstance(instance, str):
        found = pl.select(pl.lit(instance).str.contains(pattern, strict=False)).item()
        if found is False:
            yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _ignored(*_: object) -> Iterator[ValidationError]:
    """Hold nothing against a value."""
    yield from ()


Linear = extend(Draft202012Validator, {"pattern": _matches, "patternProperties": _ignored})
"""Checks schemas that agents write: no pattern of theirs takes more than linear time."""


def faults(offered: str | None, output: str | None) -> Faults:
    """Count the faulty requests of one answer; null where it cannot be judged."""
    messages = parsed(output)
    requests = tool_requests(messages if isinstance(messages, list) else None)
    schemas = _schemas(offered) if offered and requests else {}
    if not schemas:
        return None, None
    known = [request for request in requests if request.get("name") in schemas]
    broken = [
        request
        for request in known
        if not fits(schemas[str(request["name"])], request.get("arguments"))
    ]
    return len(requests) - len(known), len(broken)


def fits(schema: str, value: Any) -> bool:
    """Say whether `value`, or the JSON in it, is an instance of the JSON schema `schema`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False
    validator = _validator(schema)
    try:
        return validator is None or bool(validator.is_valid({} if value is None else value))
    # broad: a schema that an agent offers may refer to itself or to nothing, and nothing can be
    # held against such a one
    except Exception:
        return True


def check_schema(schema: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a JSON schema; null where it can be used."""
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        return str(error.message)
    return None


@lru_cache(KEPT)
def _schemas(offered: str) -> dict[str, str]:
    """Give the schema of each offered tool's arguments, by the tool's name."""
    listed = parsed(offered)
    tools = [tool for tool in listed if isinstance(tool, dict)] if isinstance(listed, list) else []
    return dict(_named(tools))


def _named(tools: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    for tool in tools:
        function = tool.get("function")
        said = function if isinstance(function, dict) else tool
        schema = said.get("parameters") or said.get("input_schema") or {}
        schema = parsed(schema)
        if said.get("name"):
            yield str(said["name"]), json.dumps(schema if isinstance(schema, dict) else {})


@lru_cache(KEPT)
def _validator(schema: str) -> Draft202012Validator | None:
    """Compile a schema; null where it is none, since nothing can be held against it."""
    given = json.loads(schema)
    if len(REFERENCE.findall(schema)) > MOST_REFERENCES or check_schema(given):
        return None
    return Linear(given, registry=Registry())  # an empty one: nothing is fetched
