"""Opik: `input`, `output` and `opik.*` on spans of OpenTelemetry that are sent to it.

The names are those of its server (`domain/mapping/otel/GeneralMappingRules.java`) and of the span
processor of opik 2.2. Its `@opik.track` sends calls to its own server only.
"""

from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.partial import Dialect, Partial, non_empty
from ltrain_transforms.dialects.platforms import payloads
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Span


def _read(span: Span) -> Partial:
    """Return the fields of `input` and `output`, whose meaning the operation's name decides."""
    request, response = span.get("input"), span.get("output")
    kind = gen_ai.KINDS.get(span.get("gen_ai.operation.name") or "", "node")
    if kind == "llm":
        return {
            **payloads.request_fields(span, "input"),
            **payloads.response_fields(span, "output"),
        }
    if kind == "tool":
        result = payloads.as_object(span.json("output"))
        text = str(result["output"]) if result.keys() == {"output"} else response
        return {**non_empty(name=span.name, arguments=request), **parse_tool_result(text)}
    is_own = kind == "node" and (request or response)
    return non_empty(
        kind="node" if is_own else None,
        input=request,
        output=response,
    )


DIALECT = Dialect(
    "opik",
    ("\nopik.",),
    _read,
    written_by="opik 2.2's `OpikSpanProcessor`, on others' spans; writers of `opik.*` by its "
    "published names",
    read_from="`input`, `output`",
    kinds="node; others by `gen_ai.operation.name`",
    messages="those of the request and the response",
    missing="agents; `@opik.track` goes to its own server only",
)
