"""Laminar: `lmnr.span.*`, and the `gen_ai.*` of its own instrumentors.

The attribute names are those of lmnr 0.8. Its instrumentors write no operation name, and messages
of the model's API into the attributes that the conventions have for theirs.
"""

from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.dialects.platforms import payloads
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Span

KINDS: dict[str, Kind] = {"LLM": "llm", "TOOL": "tool", "DEFAULT": "node"}
"""Span types that are calls; those of evaluations are not."""
INPUT, OUTPUT = "lmnr.span.input", "lmnr.span.output"
MESSAGES = {"input": "gen_ai.input.messages", "output": "gen_ai.output.messages"}


def _read(span: Span) -> Partial:
    """Return the fields of `lmnr.*`."""
    kind = KINDS.get(span.get("lmnr.span.original_type", "lmnr.span.type") or "")
    partial = non_empty(kind=kind)
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        fields = non_empty(name=span.name, arguments=span.get(INPUT))
        return {**partial, **fields, **parse_tool_result(payloads.unquoted(span.get(OUTPUT)))}
    return partial | non_empty(
        input=payloads.unquoted(span.get(INPUT)),
        output=payloads.unquoted(span.get(OUTPUT)),
    )


def _llm(span: Span) -> Partial:
    """Return the fields of an LLM call; `@observe` writes its messages as those of a function."""
    request, response = (
        MESSAGES[side] if span.get(MESSAGES[side]) else own
        for side, own in (("input", INPUT), ("output", OUTPUT))
    )
    partial = gen_ai.llm_fields(span)
    partial |= {
        **payloads.request_fields(span, request),
        **payloads.response_fields(span, response),
    }
    model = span.get("gen_ai.response.model", "gen_ai.request.model")
    parameters = gen_ai.request_parameters(span)
    return partial | non_empty(
        model=model, params=payloads.sampling(parameters.values) if parameters else None
    )


DIALECT = Dialect(
    "laminar",
    ("\nlmnr.span.",),
    _read,
    written_by="lmnr 0.8",
    read_from="`lmnr.span.*`, `gen_ai.*`",
    kinds="llm, tool, node",
    messages="those of the request and the response",
    tokens="counts",
    missing="agents, tool-call ids",
)
