"""OpenLIT: `gen_ai.*` in its own way, and the functions of `@openlit.trace`.

The attribute names are those of openlit 1.45. It writes the system's instructions twice: as
messages, and as instructions.
"""

from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.partial import Dialect, Partial, non_empty
from ltrain_transforms.traces import Span

ARGUMENTS = ("function.args", "function.kwargs")
INPUT = "gen_ai.input.messages"
NAMES = ("gen_ai.agent.name", "gen_ai.workflow.name")
"""Names of agents; spans of the Agents SDK's turns and tasks have the operation, and no name."""


def _read(span: Span) -> Partial:
    """Return the fields in which OpenLIT differs from the conventions."""
    if all(name in span.attributes for name in ARGUMENTS):
        return non_empty(
            kind="node",
            input=" ".join(span.attributes[name] for name in ARGUMENTS),
            output=span.get("gen_ai.output.messages"),
        )
    kind = gen_ai.KINDS.get(span.get("gen_ai.operation.name") or "")
    if kind != "llm":
        is_turn = kind == "agent" and span.get(*NAMES) is None
        return non_empty(kind="node" if is_turn else None)
    messages = gen_ai.attribute_messages(span, INPUT)
    repeated = messages is not None and any(one.role == "system" for one in messages.messages)
    return non_empty(input_messages=messages if repeated else None)


DIALECT = Dialect(
    "openlit",
    ("\ngen_ai.sdk.version", "\nfunction.kwargs"),
    _read,
    written_by="openlit 1.45",
    read_from="`gen_ai.*`, `function.args`, `function.kwargs`",
    kinds="llm, tool, retrieval, embedding, agent, node",
    messages="JSON; assistant's messages without text are absent from requests",
    tokens="counts",
    missing="tools of `@openlit.trace`, which are nodes; functions that raised",
)
