"""Weave: `weave.*`, the canonical names of its own conventions, and `gen_ai.*`.

The names are those of Weave's server (`trace_server/agents/semconv.py`): each `weave.X` is
`gen_ai.X`. The Python SDK 0.54 writes `gen_ai.*`, other writers `weave.*` or both.
"""

from ltrain_transforms.dialects import chat, gen_ai
from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.traces import Span, parse_json

KINDS: dict[str, Kind] = {"llm": "llm", "tool": "tool", "agent": "agent", "chain": "node"}
"""Values of `weave.span.kind`, of spans without an operation."""
PREFIX, ERROR = "weave.", "weave.error.type"
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"


def _read(span: Span) -> Partial:
    """Return the fields that `gen_ai` reads from the renamed attributes."""
    renamed = span._replace(attributes={**span.attributes, **_conventions(span)})
    partial = gen_ai.DIALECT.read(renamed)
    kind = partial.get("kind") or KINDS.get((span.get("weave.span.kind") or "").lower())
    if kind != "llm":
        return {**partial, **non_empty(kind=kind)}
    prompt = chat.iter_messages(parse_json(renamed.get(INPUT)), "user")
    return {
        **partial,
        **gen_ai.llm_fields(renamed),
        **non_empty(
            kind=kind,
            input_messages=AttributeMessages.from_list(
                INPUT, [*gen_ai.instructions(renamed), *prompt]
            ),
            output_messages=chat.chat_messages(OUTPUT, renamed.get(OUTPUT), "assistant"),
        ),
    }


def _conventions(span: Span) -> dict[str, str]:
    """Return the attributes of `weave.*` by their names in OpenTelemetry's conventions."""
    return {
        "error.type" if name == ERROR else f"gen_ai.{name.removeprefix(PREFIX)}": value
        for name, value in span.attributes.items()
        if name.startswith(PREFIX)
    }


DIALECT = Dialect(
    "weave",
    ("\nweave.",),
    _read,
    written_by="weave 0.54 (its Conversation SDK); writers of `weave.*` by its published names",
    read_from="`weave.*`, `gen_ai.*`",
    kinds="llm, tool, retrieval, embedding, agent, node",
    messages="the conventions', or those of a model's API",
    tokens="counts",
    missing="node; `@weave.op` goes to its own server only",
)
