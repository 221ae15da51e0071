"""Braintrust: `braintrust.*`, as its SDKs of Go, Java, Ruby and .NET write it.

The names are those of its documentation and of braintrust-sdk-go (`trace/`). A value is JSON in one
attribute, or flattened into several (`braintrust.metrics.prompt_tokens`). Its SDK of Python sends
its own spans to its own server, and only those of other instrumentations over OTLP.
"""

from typing import Any

from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, as_text, non_empty
from ltrain_transforms.dialects.platforms import payloads
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Span, parse_json

KINDS: dict[str, Kind] = {"llm": "llm", "tool": "tool", "task": "node", "function": "node"}
"""Types of spans that are calls; those of evaluations, `eval` and `score`, are not."""
PREFIX = "braintrust."
INPUT = ("braintrust.input_json", "braintrust.input")
OUTPUT = ("braintrust.output_json", "braintrust.output")
EMBEDDINGS = {"embedding_length", "embeddings_count"}
"""Keys of the output of an embedding, which has the type of an LLM call."""


def _read(span: Span) -> Partial:
    """Return the fields of `braintrust.*`."""
    attributes = _values(span, "span_attributes")
    kind = KINDS.get(str(attributes.get("type")))
    if kind == "llm" and payloads.as_object(span.json(*OUTPUT)).keys() & EMBEDDINGS:
        kind = "embedding"
    name = as_text(attributes.get("name")) or span.name
    metadata = _values(span, "metadata")
    partial = non_empty(kind=kind)
    if kind == "llm":
        return {**partial, **_llm(span, metadata)}
    output = payloads.unquoted(span.get(*OUTPUT))
    if kind == "tool":
        fields = non_empty(
            name=as_text(metadata.get("name")) or name,
            arguments=_arguments(span),
            tool_call_id=as_text(metadata.get("tool_call_id")),
        )
        return {**partial, **fields, **parse_tool_result(output)}
    if kind == "embedding":
        counts = payloads.usage_fields(_values(span, "metrics"))
        model = as_text(metadata.get("model"))
        partial |= non_empty(model=model, input_tokens=counts.get("input_tokens"))
    return partial | non_empty(input=payloads.unquoted(span.get(*INPUT)), output=output)


def _llm(span: Span, metadata: dict[str, Any]) -> Partial:
    """Return the fields of an LLM call; parameters and tools are metadata."""
    request, response = (
        next((name for name in names if span.get(name)), names[0]) for names in (INPUT, OUTPUT)
    )
    return {
        **gen_ai.missing_llm_fields(span),
        **payloads.request_fields(span, request),
        **payloads.response_fields(span, response),
        **payloads.usage_fields(_values(span, "metrics")),
        **non_empty(
            model=as_text(metadata.get("model")),
            response_id=as_text(metadata.get("id")),
            params=payloads.sampling(metadata),
            tools=payloads.definitions(metadata.get("tools")),
        ),
    }


def _arguments(span: Span) -> str | None:
    """Return a tool's arguments; of an MCP call those inside of its name and arguments."""
    value = payloads.as_object(span.json(*INPUT))
    if value.keys() == {"name", "arguments"}:
        return payloads.as_json(value["arguments"])
    return payloads.unquoted(span.get(*INPUT))


def _values(span: Span, name: str) -> dict[str, Any]:
    """Return an object of JSON, and the values that were flattened into names below it."""
    start = f"{PREFIX}{name}."
    flat = {
        each.removeprefix(start): parse_json(text)
        for each, text in span.attributes.items()
        if each.startswith(start)
    }
    return payloads.as_object(span.json(PREFIX + name)) | flat


DIALECT = Dialect(
    "braintrust",
    ("\nbraintrust.",),
    _read,
    written_by="Braintrust's SDKs of Go, Java, Ruby and .NET, by its published names",
    read_from="`braintrust.span_attributes`, `braintrust.input_json`, `braintrust.output_json`, "
    "`braintrust.metadata`, `braintrust.metrics`",
    kinds="llm, tool, embedding, node",
    messages="those of the request and the response",
    tokens="counts",
    missing="agents",
)
