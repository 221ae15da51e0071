"""MLflow: `mlflow.*`, as its decorators and autologging write it.

The attribute names are those of mlflow 3.17 (`mlflow/tracing/constant.py`). Every value is JSON, so
that a kind is `"AGENT"`, with the quotes.
"""

from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, as_text, non_empty
from ltrain_transforms.dialects.platforms import payloads
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Span

KINDS: dict[str, Kind] = {
    "CHAT_MODEL": "llm",
    "LLM": "llm",
    "TOOL": "tool",
    "RETRIEVER": "retrieval",
    "EMBEDDING": "embedding",
    "AGENT": "agent",
    "CHAIN": "node",
    "WORKFLOW": "node",
    "TASK": "node",
    "UNKNOWN": "node",
}
"""Span types that are calls; `PARSER`, `RERANKER`, `MEMORY`, `GUARDRAIL` and `EVALUATOR` are not.
"""
INPUTS, OUTPUTS = "mlflow.spanInputs", "mlflow.spanOutputs"


def _read(span: Span) -> Partial:
    """Return the fields of `mlflow.*`."""
    kind = KINDS.get(str(span.json("mlflow.spanType")))
    partial = non_empty(kind=kind)
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        fields = non_empty(name=_name(span), arguments=span.get(INPUTS))
        return {**partial, **fields, **parse_tool_result(payloads.unquoted(span.get(OUTPUTS)))}
    if kind == "embedding":
        counts = payloads.usage_fields(span.json("mlflow.chat.tokenUsage"))
        partial |= non_empty(model=_model(span), input_tokens=counts.get("input_tokens"))
    return partial | non_empty(
        agent=_name(span) if kind == "agent" else None,
        input=payloads.unquoted(span.get(INPUTS)),
        output=payloads.unquoted(span.get(OUTPUTS)),
    )


def _llm(span: Span) -> Partial:
    return {
        **payloads.request_fields(span, INPUTS),
        **payloads.response_fields(span, OUTPUTS),
        **payloads.usage_fields(span.json("mlflow.chat.tokenUsage")),
        **non_empty(model=_model(span)),
    }


def _model(span: Span) -> str | None:
    return as_text(span.json("mlflow.llm.model"))


def _name(span: Span) -> str:
    """Return the span's name, without the number of a repetition (`weather_2`)."""
    function = as_text(span.json("mlflow.spanFunctionName")) or ""
    repeated = span.name.removeprefix(f"{function}_").isdecimal()
    return function if function and repeated else span.name


DIALECT = Dialect(
    "mlflow",
    ("\nmlflow.spanType",),
    _read,
    written_by="mlflow 3, mlflow-tracing 3",
    read_from="`mlflow.spanType`, `mlflow.spanInputs`, `mlflow.spanOutputs`, "
    "`mlflow.chat.tokenUsage`, `mlflow.llm.model`",
    kinds="llm, tool, retrieval, embedding, agent, node",
    messages="those of the request and the response",
    tokens="counts",
    missing="tool-call ids",
)
