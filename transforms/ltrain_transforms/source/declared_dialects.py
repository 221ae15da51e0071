"""Reads `[[source.dialect]]`: adds the gen_ai conventions' attributes to spans that it describes.

So everything after the read knows these spans as any other instrumentation's. The attributes are
those of the conventions alone: a span gets neither token ids nor an identity by it.
"""

from collections.abc import Mapping, Sequence

import polars as pl

from ltrain_transforms.dialects import KIND_OPERATIONS, chat_messages
from ltrain_transforms.recipe import SPAN_NAME, DeclaredDialect, split_source

Attributes = dict[str, str]

ATTRIBUTES: Mapping[str, str] = {
    "agent": "gen_ai.agent.name",
    "error_type": "error.type",
    "model": "gen_ai.request.model",
    "input_messages": "gen_ai.input.messages",
    "output_messages": "gen_ai.output.messages",
    "tools": "gen_ai.tool.definitions",
    "finish_reason": "gen_ai.response.finish_reasons",
    "response_id": "gen_ai.response.id",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "temperature": "gen_ai.request.temperature",
    "name": "gen_ai.tool.name",
    "arguments": "gen_ai.tool.call.arguments",
    "result": "gen_ai.tool.call.result",
    "tool_call_id": "gen_ai.tool.call.id",
    "input": "gen_ai.retrieval.query.text",
    "output": "gen_ai.retrieval.documents",
}
"""The attribute of the gen_ai conventions for each field."""
ROLES = {"input_messages": "user", "output_messages": "assistant"}
"""The role of plain text in a field of messages."""


def read_declared(spans: pl.DataFrame, dialects: Sequence[DeclaredDialect]) -> pl.DataFrame:
    """Return `SPANS` with the attributes that the dialects declare; the first that fits counts."""
    if not dialects or spans.is_empty():
        return spans
    remaining = spans.with_row_index("row")
    done = []
    for dialect in dialects:
        fits = remaining.select(_fits(dialect)).to_series()
        done.append(_with_attributes(remaining.filter(fits), dialect))
        remaining = remaining.filter(~fits)
    return pl.concat([*done, remaining]).sort("row").drop("row")


def _fits(dialect: DeclaredDialect) -> pl.Expr:
    conditions = [pl.lit(True)] if dialect.scope is None else [pl.col("scope") == dialect.scope]
    for name, value in dialect.where.items():
        own = pl.col("attributes").map.get(name)
        conditions.append(own.is_not_null() if value == "*" else own.eq_missing(pl.lit(value)))
    return pl.all_horizontal(conditions).alias("fits")


def _with_attributes(spans: pl.DataFrame, dialect: DeclaredDialect) -> pl.DataFrame:
    recorded: list[Attributes] = [each or {} for each in spans["attributes"].to_list()]
    operation = {"gen_ai.operation.name": KIND_OPERATIONS[dialect.kind]}
    attributes = [each | operation for each in recorded]
    for field, source in dialect.fields.items():
        name, path = split_source(source)
        own_values = pl.Series([each.get(name) for each in recorded], dtype=pl.String)
        values = spans["name"] if name == SPAN_NAME else own_values
        found = values if path is None else values.str.json_path_match(path)
        for own, value in zip(attributes, found, strict=True):
            if (text := _as_attribute(field, value)) is not None:
                own[ATTRIBUTES[field]] = text
    return spans.with_columns(pl.Series("attributes", attributes, spans.schema["attributes"]))


def _as_attribute(field: str, value: str | None) -> str | None:
    """Return a field's value as the conventions write it."""
    if value is None:
        return None
    if field in ROLES:
        messages = chat_messages(ATTRIBUTES[field], value, ROLES[field])
        return messages.text if messages is not None else None
    return f'["{value}"]' if field == "finish_reason" and not value.startswith("[") else value
