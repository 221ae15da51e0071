"""Schemas of Gemini's API as JSON schemas."""

from typing import Any

NOT_IN_JSON_SCHEMA = ("nullable", "propertyOrdering", "example")


def plain_schema(schema: Any) -> Any:
    """Return a JSON schema for one with types in upper case, and with `nullable`."""
    if isinstance(schema, list):
        return [plain_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties" and isinstance(value, dict):
            plain[name] = {each: plain_schema(inner) for each, inner in value.items()}
        elif name in ("items", "anyOf", "prefixItems", "additionalProperties", "defs", "$defs"):
            plain[name] = plain_schema(value)
        elif name == "type" and isinstance(value, str):
            plain[name] = value.lower()
        elif name not in NOT_IN_JSON_SCHEMA:
            plain[name] = value
    if schema.get("nullable") is True and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    return plain
