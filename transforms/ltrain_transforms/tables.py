"""Tables are declared, not coded: name, type and meaning of each column, in one place.

Documentation, empty frames and checks are made from these; no other module spells a schema.
Times are nanoseconds since the epoch. `execution_id` is the key that every table shares: the
rollout's id and its attempt, `<rollout>.<attempt>`, else a session's or a trace's id.
"""

from dataclasses import dataclass

import polars as pl

from ltrain_instrument.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    dtype: pl.DataType
    doc: str
    """One sentence: what a cell says, with its unit."""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    row: str
    """What one row is."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({column.name: column.dtype for column in self.columns})

    def select(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Give `frame` exactly this table's columns, in order and type.

        Raises:
            UnknownName: when the frame lacks one of them.
        """
        there = frame.collect_schema().names()
        for name in self.schema.names():
            if name not in there:
                raise UnknownName(f"column of {self.name}", name, there)
        return frame.select(pl.col(name).cast(dtype) for name, dtype in self.schema.items())

    def empty(self) -> pl.DataFrame:
        return self.schema.to_frame()


STRING, INTEGER, FLOAT, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()
STRINGS, IDS, WEIGHTS = pl.List(pl.String()), pl.List(pl.UInt32()), pl.List(pl.Float32())

EXECUTION = Column("execution_id", STRING, "The execution it belongs to.")

SPANS = Table(
    "spans",
    "One span of the store, resolved to its execution; what every other table is made from.",
    (
        EXECUTION,
        Column("run_id", STRING, "The run, or null."),
        Column("rollout_id", STRING, "The rollout that the span itself names, or null."),
        Column("attempt", STRING, "The attempt that the span itself names, or null."),
        Column("task_id", STRING, "The task, or null."),
        Column("domain", STRING, "The task's domain, or null."),
        Column("mode", STRING, "train, val or prod, or null."),
        Column("wave", pl.Int32(), "The visit to the tasks, or null."),
        Column("sample_index", pl.Int32(), "The k of (x, k), or null."),
        Column("session_id", STRING, "The conversation, or null."),
        Column("trace_id", STRING, "Its trace."),
        Column("span_id", STRING, "Its id."),
        Column("parent_id", STRING, "The span that encloses it, or null."),
        Column("process", STRING, "`service.instance.id` of the process that ended it."),
        Column("scope", STRING, "The instrumentation that made it."),
        Column("name", STRING, "Its name."),
        Column("start", INTEGER, "When it began."),
        Column("end", INTEGER, "When it ended."),
        Column("status", STRING, "Unset, Ok or Error."),
        Column("message", STRING, "The status message."),
        Column("outcome", STRING, "On a closing span: how the attempt ended."),
        Column("reported", INTEGER, "On a process's report: the spans it ended for the attempt."),
        Column("attributes", STRING, "Its attributes, a JSON object of strings."),
        Column("events", STRING, "Its events, a JSON list of [name, attributes]."),
        Column("links", STRINGS, "The ids of the spans it links to."),
    ),
)

CALLS = Table(
    "calls",
    "One component invocation, the spans that describe it merged.",
    (
        EXECUTION,
        Column("call_id", STRING, "The outermost span that describes it."),
        Column("seq", pl.Int32(), "Order in the execution, by start time, from 0."),
        Column("trace_id", STRING, "The trace of its outermost span."),
        Column("parent_id", STRING, "The call that encloses it, or null."),
        Column("start", INTEGER, "When it began, by the agent's clock."),
        Column("end", INTEGER, "When it ended."),
        Column("kind", STRING, "llm, tool, retrieval, embedding, agent or node."),
        Column("name", STRING, "Model, tool, agent or node."),
        Column("version", STRING, "The component's own version, or null."),
        Column("endpoint", STRING, "The address that was called, or null."),
        Column("agent", STRING, "The agent it ran in; where there is none, the node."),
        Column("node", STRING, "The graph node it ran in, or null."),
        Column("model", STRING, "The model that answered."),
        Column("policy", STRING, "The policy that was sampled, or null."),
        Column("policy_version", pl.Int32(), "Its version, or null."),
        Column("params", STRING, "Sampling parameters in force, JSON."),
        Column("temperature", FLOAT, "The temperature sampled with, or null."),
        Column("input", STRING, "Messages in, JSON; of a tool its arguments."),
        Column("output", STRING, "Messages out, JSON; of a tool its result."),
        Column("arguments", STRING, "A tool's arguments, JSON."),
        Column("result", STRING, "A tool's result, as text."),
        Column("tool_call_id", STRING, "The id by which an LLM call asked for this tool, or null."),
        Column("reads", STRINGS, "Semantic variables seen in its input."),
        Column("status", STRING, "ok or error; soft failures are errors."),
        Column("error_type", STRING, "The error's class, or null."),
        Column("finish_reason", STRING, "Why the model stopped."),
        Column("input_tokens", INTEGER, "Usage as reported."),
        Column("output_tokens", INTEGER, "Usage as reported."),
        Column("prompt_token_ids", IDS, "Prompt as the server tokenised it, or null."),
        Column("response_token_ids", pl.List(IDS), "Sampled tokens of each choice, or null."),
        Column("response_logprobs", pl.List(WEIGHTS), "Their log-probabilities, as sampled."),
        Column("requested_by", STRING, "The LLM call that asked for this tool, or null."),
        Column("previous_status", STRING, "Status of the call of this kind before it, or null."),
        Column("repeat", pl.Int32(), "Earlier calls of this execution with the same input."),
        Column("gap", FLOAT, "Seconds since the previous call ended."),
        Column("constrained", FLAG, "Guided decoding: probabilities cannot be recomputed."),
        Column("delivered", FLAG, "False when the client went away before the end."),
        Column("redacted", FLAG, "Content was removed."),
        Column("truncated", FLAG, "Ended by a flush, not by its owner."),
        Column("source_spans", STRINGS, "Every span that describes it, outermost first."),
    ),
)

EXECUTIONS = Table(
    "executions",
    "One attempt at a rollout, or one session or trace of traffic that has none.",
    (
        EXECUTION,
        Column("rollout_id", STRING, "The rollout, or null."),
        Column("attempt", pl.Int32(), "Rank of the attempt, by start time, from 1."),
        Column("run_id", STRING, "The run."),
        Column("task_id", STRING, "The task."),
        Column("domain", STRING, "The task's domain."),
        Column("mode", STRING, "train, val or prod."),
        Column("wave", pl.Int32(), "The visit to the tasks."),
        Column("sample_index", pl.Int32(), "The k of (x, k)."),
        Column("group_id", STRING, "What estimators compare: run, mode, wave and task."),
        Column("outcome", STRING, "ok, error, timeout, infra, cancelled; null while it runs."),
        Column("start", INTEGER, "Its first span's start."),
        Column("end", INTEGER, "Its last span's end."),
        Column("wall", FLOAT, "Seconds from start to end."),
        Column("critical_path", FLOAT, "Seconds of the longest chain of calls."),
        Column("llm_calls", pl.Int32(), "LLM calls read from its spans."),
        Column("tool_calls", pl.Int32(), "Tool calls read from its spans."),
        Column("traces", pl.Int32(), "Traces its spans lie in."),
        Column("spans_expected", pl.Int32(), "Spans that its processes said they ended."),
        Column("spans_seen", pl.Int32(), "Of those, the spans that arrived."),
        Column("complete", FLAG, "Closed, and all expected spans arrived."),
        Column("superseded", FLAG, "A later attempt took its place."),
        Column("source_spans", STRINGS, "Its dispatch, closing and process spans."),
    ),
)

STATES = Table(
    "states",
    "One semantic variable written at a step.",
    (
        EXECUTION,
        Column("t", pl.Int32(), "The step: `seq` of the call that wrote it."),
        Column("variable", STRING, "Its name."),
        Column("value", STRING, "Its value, JSON."),
        Column("digest", STRING, "Hash of the value."),
        Column("written_by", STRING, "The call that wrote it."),
    ),
)

EVALUATIONS = Table(
    "evaluations",
    "What someone said an execution or a call is worth; rewards are made from it.",
    (
        EXECUTION,
        Column("call_id", STRING, "The call that is judged, or null: the whole execution."),
        Column("name", STRING, "The evaluation's name."),
        Column("source", STRING, "Whose word it is: runner or agent."),
        Column("value", FLOAT, "The score."),
        Column("evidence", STRING, "The span that says so."),
        Column("start", INTEGER, "When it was said."),
        Column("fault", STRING, "Why it does not count, or null."),
    ),
)

REWARDS = Table(
    "rewards",
    "One contribution to a call, or to the whole execution where call_id is null.",
    (
        EXECUTION,
        Column("call_id", STRING, "The credited call, or null: the whole execution."),
        Column("rule", STRING, "The rule or evaluation that gave it."),
        Column("source", STRING, "Whose word it is: rule, runner, agent or recipe."),
        Column("value", FLOAT, "How much, after bounds and weight."),
        Column("evidence", STRING, "The span that made it so."),
    ),
)

TRANSITIONS = Table(
    "transitions",
    "One call of a trained policy.",
    (
        EXECUTION,
        Column("call_id", STRING, "The call."),
        Column("group_id", STRING, "What its execution was compared within."),
        Column("t", pl.Int32(), "Order of the call in its execution."),
        Column("agent", STRING, "The agent that made it."),
        Column("policy", STRING, "The trained policy."),
        Column("policy_version", pl.Int32(), "The version that was sampled."),
        Column("state_digest", STRING, "Hash of the state it saw."),
        Column("reward", FLOAT, "Sum of what rules gave to this call."),
        Column("returns", FLOAT, "Reward-to-go from this call on."),
        Column("outcome_advantage", FLOAT, "The execution's, one value for all its calls."),
        Column("process_advantage", FLOAT, "From call rewards, against the group."),
        Column("step_advantage", FLOAT, "From step estimators; 0 where there is none."),
        Column("advantage", FLOAT, "The three, fused with the recipe's weights."),
    ),
)

SAMPLES = Table(
    "samples",
    "One training row: one or more transitions, merged where the tokens allow.",
    (
        Column("sample_id", STRING, "Hash of its transitions."),
        EXECUTION,
        Column("rollout_id", STRING, "The rollout."),
        Column("group_id", STRING, "The group."),
        Column("policy", STRING, "The trained policy."),
        Column("tokens", STRING, "sampled (as the server reported) or rendered (SFT only)."),
        Column("prompt_ids", IDS, "Context before the first trained token."),
        Column("response_ids", IDS, "Sampled tokens, and what came between the calls."),
        Column("response_mask", pl.List(pl.UInt8()), "1 where the token was sampled."),
        Column("rollout_logprobs", WEIGHTS, "As sampled; 0 where the mask is 0."),
        Column("advantages", WEIGHTS, "Per token; 0 where the mask is 0."),
        Column("token_rewards", WEIGHTS, "Immediate, at each call's last token; never returns."),
        Column("loss_weight", WEIGHTS, "Per token: equal weight a rollout, call or token."),
        Column("temperature", pl.Float32(), "What every token of the row was sampled with."),
        Column("call_offsets", IDS, "Where in the response each call's sampled tokens begin."),
        Column("call_versions", pl.List(pl.Int32()), "The policy version of each call."),
        Column("next_sample_id", STRING, "The row that goes on where this one stops, or null."),
        Column("transition_ids", STRINGS, "The calls in it."),
    ),
)

DROPS = Table(
    "drops",
    "One thing left out, with the reason.",
    (
        Column("stage", STRING, "spans, executions, rewards, groups or rows."),
        Column("id", STRING, "What was dropped."),
        Column("reason", STRING, "A name from the docs."),
        Column("detail", STRING, "A sentence for a person."),
    ),
)

TABLES = (CALLS, EXECUTIONS, STATES, REWARDS, TRANSITIONS, SAMPLES, DROPS)
