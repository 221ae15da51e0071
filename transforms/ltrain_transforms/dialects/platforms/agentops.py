"""AgentOps: `agentops.span.kind`, and the attributes of its decorators and instrumentors.

The attribute names are those of agentops 0.4 (`agentops/semconv/`, `sdk/decorators/utility.py`).
Decorators write `agentops.<kind>.input`, earlier 0.4 releases `agentops.entity.input`. Messages are
flattened, `gen_ai.prompt.N.*`, as in older traceloop releases.
"""

from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.attribute_messages import flattened_messages
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.dialects.tool_payloads import parse_tool_result, unwrap_call
from ltrain_transforms.traces import Span

KINDS: dict[str, Kind] = {
    "llm": "llm",
    "llm.call": "llm",
    "tool": "tool",
    "agent": "agent",
    "agent.action": "node",
    "workflow": "agent",
    "team": "agent",
    "task": "node",
    "operation": "node",
    "workflow.step": "node",
    "chain": "node",
}
"""Kinds that are calls; `session`, the root, is none."""
REQUESTS = ("chat", "completion")


def _read(span: Span) -> Partial:
    """Return the fields of `agentops.*`."""
    kind_name = (span.get("agentops.span.kind") or "").lower()
    kind = "llm" if span.get("gen_ai.request.type") in REQUESTS else KINDS.get(kind_name)
    name = span.get("agentops.entity.name", "operation.name", "agentops.operation.name")
    partial = non_empty(
        kind=kind, version=span.get("operation.version", "agentops.operation.version")
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    input_text = span.get(f"agentops.{kind_name}.input", "agentops.entity.input")
    output_text = span.get(f"agentops.{kind_name}.output", "agentops.entity.output")
    if kind == "tool":
        fields = non_empty(
            name=span.get("tool.name") or name,
            arguments=unwrap_call(span.get("tool.parameters") or input_text),
            tool_call_id=span.get("tool.call.id"),
        )
        failed = non_empty(status="error" if span.get("tool.status") == "failed" else None)
        return {
            **partial,
            **fields,
            **parse_tool_result(span.get("tool.result") or output_text),
            **failed,
        }
    agent = span.get("agent.name") or (name if kind == "agent" else None)
    return partial | non_empty(agent=agent, name=name, input=input_text, output=output_text)


def _llm(span: Span) -> Partial:
    return gen_ai.missing_llm_fields(span) | non_empty(
        input_messages=flattened_messages(span, "gen_ai.prompt"),
        output_messages=flattened_messages(span, "gen_ai.completion"),
        model=span.get("gen_ai.response.model", "gen_ai.request.model"),
        finish_reason=span.get(
            "gen_ai.completion.0.finish_reason",
            "gen_ai.response.finish_reason",
            "gen_ai.response.stop_reason",
        ),
        input_tokens=span.integer("gen_ai.usage.prompt_tokens"),
        output_tokens=span.integer("gen_ai.usage.completion_tokens"),
    )


DIALECT = Dialect(
    "agentops",
    ("\nagentops.span.kind", "\ngen_ai.request.type"),
    _read,
    written_by="agentops 0.4",
    read_from="`agentops.span.kind`, `agentops.<kind>.input`, `agentops.entity.*`, "
    "`gen_ai.prompt.N`",
    kinds="llm, tool, agent, node",
    messages="flattened",
    tokens="counts",
)
