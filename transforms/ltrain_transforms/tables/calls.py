"""The tables `calls`, component invocations, and `states`, semantic variables.

Each column of `calls` is declared once, with its source. A new column with the source `FIELD` needs
only its declaration and a dialect that reads it.
"""

from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from ltrain_transforms.tables.column import (
    EXECUTION,
    FLAG,
    FLOAT,
    IDS,
    INTEGER,
    STRING,
    STRINGS,
    WEIGHTS,
    Column,
    Table,
)


class CellSource(StrEnum):
    """The source of the cells of a column."""

    FIELD = "field"
    """The field of that name that dialects read, merged over the spans of the call."""
    MERGED = "merged"
    """The merged spans: `MergedCells` of `calls.merging`."""
    TOKENS = "tokens"
    """The token ids, which are decoded for all calls at once."""
    NEIGHBOURS = "neighbours"
    """The earlier calls of the execution."""
    LATER = "later"
    """The later calls of the execution."""
    STATES = "states"
    """The stage `states`; null before it."""


@dataclass(frozen=True, slots=True)
class CallColumn(Column):
    """A column of `CALLS`."""

    source: CellSource
    default: object = None
    """The cell where no span has the field."""


CALL_COLUMNS = (
    CallColumn("execution_id", STRING, "The execution of the row.", CellSource.MERGED),
    CallColumn(
        "call_id", STRING, "The id of the outermost span that describes it.", CellSource.MERGED
    ),
    CallColumn(
        "seq",
        pl.Int32(),
        "Its position in the execution, by start time, from 0.",
        CellSource.NEIGHBOURS,
    ),
    CallColumn("trace_id", STRING, "The trace of its outermost span.", CellSource.MERGED),
    CallColumn("parent_id", STRING, "The call that encloses it, or null.", CellSource.MERGED),
    CallColumn("start", INTEGER, "Start, by the agent's clock.", CellSource.MERGED),
    CallColumn("end", INTEGER, "End, by the agent's clock.", CellSource.MERGED),
    CallColumn("kind", STRING, "llm, tool, retrieval, embedding, agent or node.", CellSource.FIELD),
    CallColumn("name", STRING, "Model, tool, agent or node.", CellSource.MERGED),
    CallColumn("version", STRING, "The component's version, or null.", CellSource.FIELD),
    CallColumn("endpoint", STRING, "The address of the server, or null.", CellSource.FIELD),
    CallColumn(
        "agent",
        STRING,
        "The agent it ran in, or that requested it; else the node.",
        CellSource.MERGED,
    ),
    CallColumn("node", STRING, "The graph node it ran in, or null.", CellSource.MERGED),
    CallColumn("model", STRING, "The model that answered.", CellSource.FIELD),
    CallColumn("policy", STRING, "The policy that was sampled, or null.", CellSource.FIELD),
    CallColumn("policy_version", pl.Int32(), "Its version, or null.", CellSource.MERGED),
    CallColumn("params", STRING, "Sampling parameters, JSON.", CellSource.MERGED),
    CallColumn("tools", STRING, "Tool definitions of the request, JSON.", CellSource.FIELD),
    CallColumn("temperature", FLOAT, "Sampling temperature, or null.", CellSource.MERGED),
    CallColumn(
        "input",
        STRING,
        "Messages of the prompt, JSON; for a tool its arguments.",
        CellSource.MERGED,
    ),
    CallColumn(
        "output", STRING, "Messages of the answer, JSON; for a tool its result.", CellSource.MERGED
    ),
    CallColumn("arguments", STRING, "A tool's arguments, JSON.", CellSource.MERGED),
    CallColumn("result", STRING, "A tool's result, as text.", CellSource.MERGED),
    CallColumn(
        "tool_call_id",
        STRING,
        "The id by which an LLM call requested this tool, or null.",
        CellSource.FIELD,
    ),
    CallColumn(
        "reads", STRINGS, "Semantic variables whose values occur in its input.", CellSource.STATES
    ),
    CallColumn(
        "action",
        STRING,
        "For an LLM call: answer, tool_request, or context (it rewrote the history).",
        CellSource.STATES,
    ),
    CallColumn(
        "turn_index",
        pl.Int32(),
        "How many calls of its kind, agent and node ended before it; parallel calls share it.",
        CellSource.STATES,
    ),
    CallColumn(
        "status",
        STRING,
        "ok or error; a tool may fail although its span has no error status.",
        CellSource.FIELD,
        default="ok",
    ),
    CallColumn("error_type", STRING, "The error's class, or null.", CellSource.FIELD),
    CallColumn("finish_reason", STRING, "Why the model stopped.", CellSource.FIELD),
    CallColumn("input_tokens", INTEGER, "Tokens as reported by the provider.", CellSource.FIELD),
    CallColumn("output_tokens", INTEGER, "Tokens as reported by the provider.", CellSource.FIELD),
    CallColumn(
        "reasoning_tokens", INTEGER, "Output tokens used for reasoning, or null.", CellSource.FIELD
    ),
    CallColumn(
        "cached_tokens", INTEGER, "Input tokens read from a cache, or null.", CellSource.FIELD
    ),
    CallColumn(
        "prompt_token_ids",
        IDS,
        "Token ids of the prompt, as the server tokenised it, or null.",
        CellSource.TOKENS,
    ),
    CallColumn(
        "response_token_ids",
        pl.List(IDS),
        "Sampled token ids of each choice, or null.",
        CellSource.TOKENS,
    ),
    CallColumn(
        "response_logprobs",
        pl.List(WEIGHTS),
        "Log-probabilities of the sampled tokens, as the server reported them.",
        CellSource.TOKENS,
    ),
    CallColumn(
        "choice",
        pl.Int32(),
        "Of several choices, the index of the one that a later call of the execution continues; "
        "null for a single one, and if no later call, or more than one choice, is found.",
        CellSource.LATER,
    ),
    CallColumn(
        "token_source",
        STRING,
        "Who recorded its token ids: gateway (under an attempt's key), traffic (the gateway, "
        "without one), capture (the agent's own process); null without ids.",
        CellSource.MERGED,
    ),
    CallColumn(
        "requested_by", STRING, "The LLM call that requested this tool, or null.", CellSource.MERGED
    ),
    CallColumn(
        "previous_status",
        STRING,
        "Status of the previous call of this kind, or null.",
        CellSource.NEIGHBOURS,
    ),
    CallColumn(
        "repeat",
        pl.Int32(),
        "Earlier calls of this execution with the same input.",
        CellSource.NEIGHBOURS,
    ),
    CallColumn("gap", FLOAT, "Seconds since the previous call ended.", CellSource.NEIGHBOURS),
    CallColumn(
        "constrained",
        FLAG,
        "The server sampled from a part of the ids only: guided decoding.",
        CellSource.FIELD,
        default=False,
    ),
    CallColumn(
        "constraint",
        STRING,
        "The grammar of a constrained call, JSON; null: its masks cannot be computed again.",
        CellSource.FIELD,
    ),
    CallColumn(
        "continued",
        INTEGER,
        "Under `serve.continue_tokens`: with how many ids of an earlier call its prompt begins; 0: "
        "the chat template rendered it; null: the setting was off.",
        CellSource.FIELD,
    ),
    CallColumn(
        "not_continued",
        STRING,
        "Why the chat template rendered its prompt, although it repeats an earlier answer.",
        CellSource.FIELD,
    ),
    CallColumn(
        "delivered",
        FLAG,
        "False if the client disconnected before the end of the answer.",
        CellSource.FIELD,
        default=True,
    ),
    CallColumn(
        "redacted",
        FLAG,
        "Content was removed, or its messages were too long for a span and were cut.",
        CellSource.MERGED,
    ),
    CallColumn(
        "untimed",
        FLAG,
        "Its times are when the gateway got its result, so that it has no duration.",
        CellSource.FIELD,
        default=False,
    ),
    CallColumn("truncated", FLAG, "A flush ended its span, not the owner.", CellSource.MERGED),
    CallColumn(
        "capture_mismatch",
        STRING,
        "Where its captures differ: output, tools, or null.",
        CellSource.MERGED,
    ),
    CallColumn(
        "source_spans",
        STRINGS,
        "Ids of the spans that describe it, the outermost first.",
        CellSource.MERGED,
    ),
)

CALLS = Table(
    "calls", "One component invocation, merged from the spans that describe it.", CALL_COLUMNS
)


def columns_from(source: CellSource) -> tuple[CallColumn, ...]:
    """Return the columns of `CALLS` with this source."""
    return tuple(column for column in CALL_COLUMNS if column.source == source)


def taken_choice(column: str) -> pl.Expr:
    """Return the choice that the agent used: the only one, or the column `choice`."""
    return pl.col(column).list.get(pl.col("choice").fill_null(0), null_on_oob=True)


def lacks_token_ids() -> pl.Expr:
    """Return whether a call has no token ids of its prompt, or none of its answer."""
    prompt, answer = pl.col("prompt_token_ids"), taken_choice("response_token_ids")
    return (prompt.list.len().fill_null(0) == 0) | (answer.list.len().fill_null(0) == 0)


STATES = Table(
    "states",
    "One write of a semantic variable.",
    (
        EXECUTION,
        Column(
            "t",
            pl.Int32(),
            "The step from which the value is current: the `seq` of the first call that found it.",
        ),
        Column("variable", STRING, "Its name: see states.md."),
        Column("value", STRING, "Its value, JSON."),
        Column("digest", STRING, "Hash of the value without ids of messages and tool calls."),
        Column("written_by", STRING, "The call that wrote it; null: no traced call."),
    ),
)
