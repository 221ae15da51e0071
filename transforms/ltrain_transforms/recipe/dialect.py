"""`[[source.dialect]]`: how the attributes of an instrumentation of one's own are read as calls."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.recipe.section import Section

SPAN_NAME = "span.name"
"""The source of a field that is the name of the span."""
EVERY_CALL = ("agent", "error_type")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "llm": (
        *("model", "input_messages", "output_messages", "tools", "finish_reason", "response_id"),
        *("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "temperature"),
        *EVERY_CALL,
    ),
    "tool": ("name", "arguments", "result", "tool_call_id", *EVERY_CALL),
    "retrieval": ("input", "output", *EVERY_CALL),
    "embedding": ("model", "input_tokens", *EVERY_CALL),
    "agent": EVERY_CALL,
}
"""The fields of each kind of call."""


class DeclaredDialect(Section):
    """How spans of an instrumentation that no dialect knows are read as calls of one kind."""

    kind: Literal["llm", "tool", "retrieval", "embedding", "agent"]
    """The kind of call that the spans describe."""
    scope: str | None = None
    """The spans' instrumentation scope; unset: any."""
    where: dict[str, str] = Field(default_factory=dict)
    """Attributes of the spans and their values, for example `{ "acme.kind" = "llm" }`; the value
    `*` is any."""
    fields: dict[str, str] = Field(min_length=1)
    """Fields of the call, each with its attribute, for example `model = "acme.model"`, its
    attribute and a JSONPath in it, `input_messages = "acme.request $.messages"`, or `span.name`."""

    @field_validator("fields")
    @classmethod
    def _are_sources(cls, fields: dict[str, str]) -> dict[str, str]:
        for name, source in fields.items():
            if fault := _source_fault(source):
                raise ValueError(f"The field '{name}' has the source '{source}': {fault}")
        return fields

    @model_validator(mode="after")
    def _are_fields_of_the_kind(self) -> Self:
        if self.scope is None and not self.where:
            raise ValueError(
                "Nothing says which spans are meant. Set scope, or where = { ATTRIBUTE = VALUE }."
            )
        for name in self.fields:
            if name not in FIELDS[self.kind]:
                fault = UnknownName(f"{self.kind} field", name, FIELDS[self.kind])
                raise ValueError(str(fault))
        return self


def split_source(source: str) -> tuple[str, str | None]:
    """Return the attribute of a source, and the JSONPath in its value."""
    attribute, _, path = source.partition(" ")
    return attribute, path.strip() or None


def _source_fault(source: str) -> str | None:
    """Return the fault of a source; None where it is valid."""
    import polars as pl  # most recipes declare no dialect, and Polars takes half of their import

    attribute, path = split_source(source)
    if not attribute:
        return "it names no attribute."
    if path is None:
        return None
    if not path.startswith("$"):
        return f"a JSONPath begins with $, as in '{attribute} $.{path}'."
    try:
        pl.Series(["{}"]).str.json_path_match(path)
    except pl.exceptions.ComputeError as error:
        lines = str(error).removeprefix("error compiling JSON path expression ").splitlines()
        return f"'{path}' is not a JSONPath ({' '.join(lines)[:80].strip()})."
    return None
