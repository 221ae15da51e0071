"""Promoted columns: attributes that have a column of their own in the tables and views.

`PROMOTED` is the only list of them. The tables' columns, both views, the migration of existing
tables, the select and `SPANS` of the transforms, the identity of bound keys and
`docs/attributes.md` are made from it.

A column is `MATERIALIZED`: ClickHouse computes it when a row is inserted, and reads it without the
attributes. To add a column, or to change its expression, name a new step in `since`, such as
`11_tenant`; existing stores get the column in this step.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ltrain_instrument import attributes

ID, WORD, NUMBER = "String", "LowCardinality(String)", "UInt32"
"""The types of columns: text with many values, text with few values, and a number."""

CODECS = {ID: " CODEC(ZSTD(1))", NUMBER: " CODEC(T64, ZSTD(1))"}

RECORD_ATTRIBUTES = {"traces": "SpanAttributes", "logs": "LogAttributes"}
"""The column with the attributes of a span and of a log record, by signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedColumn:
    """A column and its attributes, of which the first that is not empty counts."""

    name: str
    type: str
    doc: str
    record: tuple[str, ...] = ()
    """Attributes of the span or log record."""
    resource: tuple[str, ...] = ()
    """Attributes of its resource."""
    signals: tuple[str, ...] = ("traces",)
    since: str = ""
    """The migration step that gives an existing table this column, or its changed expression."""
    identity: bool = False
    """Whether its attributes assign a record to a rollout: a bound key sets them."""
    in_transforms: bool = False
    """Whether `SPANS` of the transforms has it; null there where no attribute names it."""

    @property
    def snake_name(self) -> str:
        """The column's name in the transforms: `task_id` for `TaskId`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()

    def text(self, signal: str = "traces") -> str:
        """Return the SQL that reads the attributes; an empty string if none is set."""
        values = [f"{RECORD_ATTRIBUTES[signal]}['{name}']" for name in self.record]
        values += [f"ResourceAttributes['{name}']" for name in self.resource]
        if len(values) == 1:
            return values[0]
        choices = ", ".join(f"{value} != '', {value}" for value in values[:-1])
        return f"{'if' if len(values) == 2 else 'multiIf'}({choices}, {values[-1]})"

    def expression(self, signal: str = "traces") -> str:
        """Return the SQL of the column's value; a number that no attribute names is 0."""
        text = self.text(signal)
        return f"toUInt32OrZero({text})" if self.type == NUMBER else text

    def definition(self, signal: str) -> str:
        """Return the definition of the column in a table."""
        materialized = f"MATERIALIZED {self.expression(signal)}"
        return f"{self.name} {self.type} {materialized}{CODECS.get(self.type, '')}"


BOTH = ("traces", "logs")
RESOURCE_STEP = "10_resource"
"""The step after which task, domain, mode and wave of a resource count like those of a span."""
REPORT_STEP = "11_reports"
"""The step that adds what reports read of every span; attributes take ten times as long to read."""
LIST_STEP = "12_lists"
"""The step that adds what lists and totals read, whichever instrumentation names it."""
PLATFORM_STEP = "16_platforms"
"""The step after which kinds and sessions of MLflow, Laminar, Opik and Weave count."""

SESSION_NAMES = (
    "session.id",
    attributes.CONVERSATION_ID,
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
    "langsmith.metadata.session_id",
    "langsmith.metadata.thread_id",
    "ai.telemetry.metadata.sessionId",
    "lmnr.association.properties.session_id",
    "thread_id",
)
"""Attributes of several instrumentations that name a session, the strongest first."""

KIND_NAMES = (
    "llm.request.type",
    "openinference.span.kind",
    "langsmith.span.kind",
    "langfuse.observation.type",
    "agentops.span.kind",
    "traceloop.span.kind",
    "ai.operationId",
    "mlflow.spanType",
    "lmnr.span.type",
    "weave.span.kind",
)
"""Attributes of several instrumentations that name the kind of a span, the strongest first."""

PROMOTED = (
    PromotedColumn(
        name="RunId",
        type=WORD,
        doc="The run.",
        record=(attributes.RUN_ID,),
        resource=(attributes.RUN_ID,),
        signals=BOTH,
        identity=True,
        in_transforms=True,
    ),
    PromotedColumn(
        name="RolloutId",
        type=ID,
        doc="The rollout. It is a hint: readers resolve the execution of a span.",
        record=(attributes.ROLLOUT_ID,),
        resource=(attributes.ROLLOUT_ID, "agentlightning.rollout_id"),
        signals=BOTH,
        identity=True,
        in_transforms=True,
    ),
    PromotedColumn(
        name="Attempt",
        type=WORD,
        doc="The attempt at the rollout.",
        record=(attributes.ATTEMPT_ID,),
        resource=(attributes.ATTEMPT_ID, "agentlightning.attempt_id"),
        signals=BOTH,
        identity=True,
        in_transforms=True,
    ),
    PromotedColumn(
        name="Sender",
        type=WORD,
        doc="The sender, by its key: readers derive roles from it, not from a scope's name.",
        resource=(attributes.SENDER,),
        signals=BOTH,
    ),
    PromotedColumn(
        name="TaskId",
        type=ID,
        doc="The task.",
        record=(attributes.TASK_ID,),
        resource=(attributes.TASK_ID,),
        since=RESOURCE_STEP,
        identity=True,
        in_transforms=True,
    ),
    PromotedColumn(
        name="Domain",
        type=WORD,
        doc="The domain of the task.",
        record=(attributes.DOMAIN,),
        resource=(attributes.DOMAIN,),
        since=RESOURCE_STEP,
        identity=True,
        in_transforms=True,
    ),
    PromotedColumn(
        name="Mode",
        type=WORD,
        doc="train, val, test or prod.",
        record=(attributes.MODE,),
        resource=(attributes.MODE,),
        since=RESOURCE_STEP,
        identity=True,
        in_transforms=True,
    ),
    PromotedColumn(
        name="Wave",
        type=NUMBER,
        doc="The wave.",
        record=(attributes.WAVE,),
        resource=(attributes.WAVE,),
        since=RESOURCE_STEP,
        identity=True,
        in_transforms=True,
    ),
    PromotedColumn(
        name="SampleIndex",
        type=NUMBER,
        doc="The number of the rollout within its task and wave.",
        record=(attributes.SAMPLE_INDEX,),
        resource=(attributes.SAMPLE_INDEX,),
        since=RESOURCE_STEP,
        identity=True,
        in_transforms=True,
    ),
    PromotedColumn(
        name="PolicyName", type=WORD, doc="The policy.", record=(attributes.POLICY_NAME,)
    ),
    PromotedColumn(
        name="PolicyVersion",
        type=NUMBER,
        doc="The version of the policy.",
        record=(attributes.POLICY_VERSION,),
    ),
    PromotedColumn(
        name="GenAiOp",
        type=WORD,
        doc="The operation: chat, execute_tool, …",
        record=("gen_ai.operation.name",),
    ),
    PromotedColumn(
        name="GenAiModel",
        type=WORD,
        doc="The model that answered, else the model that was requested.",
        record=("gen_ai.response.model", "gen_ai.request.model"),
    ),
    PromotedColumn(
        name="InTokens",
        type=NUMBER,
        doc="Number of prompt tokens.",
        record=("gen_ai.usage.input_tokens", "llm.token_count.prompt"),
        since=LIST_STEP,
    ),
    PromotedColumn(
        name="OutTokens",
        type=NUMBER,
        doc="Number of response tokens.",
        record=("gen_ai.usage.output_tokens", "llm.token_count.completion"),
        since=LIST_STEP,
    ),
    PromotedColumn(
        name="ToolName",
        type=WORD,
        doc="The tool.",
        record=("gen_ai.tool.name", "tool.name", "mcp.tool.name", "ai.toolCall.name"),
        since=LIST_STEP,
    ),
    PromotedColumn(
        name="AgentName",
        type=WORD,
        doc="The agent, or the node of its graph.",
        record=(
            "gen_ai.agent.name",
            "langgraph.node",
            "langsmith.metadata.langgraph_node",
            "graph.node.id",
        ),
        since=LIST_STEP,
    ),
    PromotedColumn(
        name="SessionId",
        type=ID,
        doc="The session, or the conversation.",
        record=SESSION_NAMES,
        since=PLATFORM_STEP,
    ),
    PromotedColumn(
        name="GenAiKind",
        type=WORD,
        doc="What an instrumentation calls the span, such as LLM, TOOL or chat.",
        record=KIND_NAMES,
        since=PLATFORM_STEP,
    ),
    PromotedColumn(
        name="Outcome",
        type=WORD,
        doc="The outcome of the attempt that the span closes.",
        record=(attributes.OUTCOME,),
        since=REPORT_STEP,
    ),
    PromotedColumn(
        name="EvaluationName",
        type=WORD,
        doc="The name of an evaluation.",
        record=(attributes.EVALUATION_NAME,),
        since=REPORT_STEP,
    ),
    PromotedColumn(
        name="EvaluationValue",
        type=ID,
        doc="The score of an evaluation, as text.",
        record=(attributes.EVALUATION_VALUE,),
        since=REPORT_STEP,
    ),
    PromotedColumn(
        name="EvaluationLabel",
        type=WORD,
        doc="The label of an evaluation.",
        record=(attributes.EVALUATION_LABEL,),
        since=REPORT_STEP,
    ),
    PromotedColumn(
        name="EvaluationScope",
        type=WORD,
        doc="What an evaluation is about: rollout or call.",
        record=(attributes.REWARD_SCOPE,),
        since=REPORT_STEP,
    ),
)


def columns_of(signal: str) -> list[PromotedColumn]:
    """Return the promoted columns of a signal's table, in order."""
    return [column for column in PROMOTED if signal in column.signals]


def placeholders(signal: str) -> dict[str, str]:
    """Return what the files of `ddl/` contain of the columns of a signal."""
    columns = columns_of(signal)
    return {
        f"{signal}_columns": ",\n    ".join(each.definition(signal) for each in columns),
        f"{signal}_names": ", ".join(each.name for each in columns),
        f"{signal}_values": ",\n    ".join(
            f"{each.expression(signal)} AS {each.name}" for each in columns
        ),
    }


IDENTITY_ATTRIBUTES = {
    name: each.record[0] for each in PROMOTED if each.identity for name in each.resource
}
"""The identity attribute by each attribute from which readers take an identity."""

_KIND = "lower(extract(toString(GenAiKind), '([^.\"]+)\"?$'))"
"""The last part of a dotted kind, without the quotes of JSON: doGenerate of
ai.generateText.doGenerate."""
_LLM_KINDS = "('llm', 'generation', 'dogenerate', 'dostream', 'chat', 'completion', 'chat_model')"
LLM_SQL = f"(GenAiOp IN ('chat', 'text_completion', 'generate_content') OR {_KIND} IN {_LLM_KINDS})"
"""SQL condition: the span is a model's call."""
TOOL_SQL = f"(GenAiOp = 'execute_tool' OR {_KIND} IN ('tool', 'toolcall'))"
"""SQL condition: the span is a tool's call."""
TOOL_NAME_SQL = (
    "if(ToolName != '', toString(ToolName), replaceRegexpOne(toString(SpanName), '[.]tool$', ''))"
)
"""SQL expression: the tool of a tool's call; a span of traceloop's SDK is named `<tool>.tool`."""
COMPONENT_SQL = (
    f"({LLM_SQL} OR {TOOL_SQL} OR GenAiOp IN ('retrieval', 'embeddings') "
    f"OR {_KIND} IN ('retriever', 'retrieval', 'embedding'))"
)
"""SQL condition: the span is a call that an evaluation on it judges, not an agent or a node."""

PLACEHOLDERS = {
    **placeholders("traces"),
    **placeholders("logs"),
    "tool": TOOL_SQL,
    "tool_name": TOOL_NAME_SQL,
    "component": COMPONENT_SQL,
}


def step_names(signal: str) -> tuple[str, ...]:
    """Return the steps that change promoted columns of a signal's existing table, in order."""
    names = (f"{each.since}_{signal}" for each in columns_of(signal) if each.since)
    return tuple(dict.fromkeys(names))


def step_statements(step: str) -> Iterator[str]:
    """Yield the statements of a step; none if it changes no promoted column.

    The last statement computes the columns of the rows that exist, once. Views that read the
    resource instead would read the attributes in each query, and could not use the index on the
    task.
    """
    for signal in RECORD_ATTRIBUTES:
        columns = columns_of(signal)
        changed = [each for each in columns if f"{each.since}_{signal}" == step]
        if not changed:
            continue
        before = dict(zip(columns[1:], columns[:-1], strict=True))
        table = f"ALTER TABLE otel.otel_{signal}"
        yield f"{table} " + ", ".join(
            f"ADD COLUMN IF NOT EXISTS {each.definition(signal)} AFTER {before[each].name}"
            for each in changed
        )
        yield f"{table} " + ", ".join(
            f"MODIFY COLUMN {each.definition(signal)}" for each in changed
        )
        materialized = ", ".join(f"MATERIALIZE COLUMN {each.name}" for each in changed)
        yield f"{table} {materialized} SETTINGS mutations_sync = 2"


UNIT_SQL = "if(RolloutId != '', RolloutId, TraceId)"
"""SQL expression: the rollout of a span, else its trace."""

MODE_SQL = "if(Mode = '', 'prod', toString(Mode))"
"""SQL expression: the mode of a span; traffic without ltrain's identity names none."""
