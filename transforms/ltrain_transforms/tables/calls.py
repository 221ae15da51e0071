"""The table `calls`: component invocations."""

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

CALLS = Table(
    "calls",
    "One component invocation, merged from the spans that describe it.",
    (
        EXECUTION,
        Column("call_id", STRING, "The id of the outermost span that describes it."),
        Column("seq", pl.Int32(), "Its position in the execution, by start time, from 0."),
        Column("trace_id", STRING, "The trace of its outermost span."),
        Column("parent_id", STRING, "The call that encloses it, or null."),
        Column("start", INTEGER, "Start, by the agent's clock."),
        Column("end", INTEGER, "End, by the agent's clock."),
        Column("kind", STRING, "llm, tool, retrieval, embedding, agent or node."),
        Column("name", STRING, "Model, tool, agent or node."),
        Column("version", STRING, "The component's version, or null."),
        Column("endpoint", STRING, "The address of the server, or null."),
        Column("agent", STRING, "The agent it ran in, or that requested it; else the node."),
        Column("node", STRING, "The graph node it ran in, or null."),
        Column("model", STRING, "The model that answered."),
        Column("policy", STRING, "The policy that was sampled, or null."),
        Column("policy_version", pl.Int32(), "Its version, or null."),
        Column("params", STRING, "Sampling parameters, JSON."),
        Column("tools", STRING, "Tool definitions of the request, JSON."),
        Column("temperature", FLOAT, "Sampling temperature, or null."),
        Column("input", STRING, "Messages of the prompt, JSON; for a tool its arguments."),
        Column("output", STRING, "Messages of the answer, JSON; for a tool its result."),
        Column("arguments", STRING, "A tool's arguments, JSON."),
        Column("result", STRING, "A tool's result, as text."),
        Column("tool_call_id", STRING, "The id by which an LLM call requested this tool, or null."),
        Column("reads", STRINGS, "Semantic variables whose values occur in its input."),
        Column(
            "action",
            STRING,
            "For an LLM call: answer, tool_request, or context (it rewrote the history).",
        ),
        Column(
            "turn_index",
            pl.Int32(),
            "How many calls of its kind, agent and node ended before it; parallel calls share it.",
        ),
        Column(
            "status", STRING, "ok or error; a tool may fail although its span has no error status."
        ),
        Column("error_type", STRING, "The error's class, or null."),
        Column("finish_reason", STRING, "Why the model stopped."),
        Column("input_tokens", INTEGER, "Tokens as reported by the provider."),
        Column("output_tokens", INTEGER, "Tokens as reported by the provider."),
        Column("reasoning_tokens", INTEGER, "Output tokens used for reasoning, or null."),
        Column("cached_tokens", INTEGER, "Input tokens read from a cache, or null."),
        Column(
            "prompt_token_ids", IDS, "Token ids of the prompt, as the server tokenised it, or null."
        ),
        Column("response_token_ids", pl.List(IDS), "Sampled token ids of each choice, or null."),
        Column(
            "response_logprobs",
            pl.List(WEIGHTS),
            "Log-probabilities of the sampled tokens, as the server reported them.",
        ),
        Column(
            "token_source",
            STRING,
            "Who recorded its token ids: gateway (under an attempt's key), traffic (the gateway, "
            "without one), capture (the agent's own process); null without ids.",
        ),
        Column("requested_by", STRING, "The LLM call that requested this tool, or null."),
        Column("previous_status", STRING, "Status of the previous call of this kind, or null."),
        Column("repeat", pl.Int32(), "Earlier calls of this execution with the same input."),
        Column("gap", FLOAT, "Seconds since the previous call ended."),
        Column("constrained", FLAG, "Guided decoding: its log-probabilities cannot be recomputed."),
        Column("delivered", FLAG, "False if the client disconnected before the end of the answer."),
        Column(
            "redacted",
            FLAG,
            "Content was removed, or its messages were too long for a span and were cut.",
        ),
        Column("truncated", FLAG, "A flush ended its span, not the owner."),
        Column("capture_mismatch", STRING, "Where its captures differ: output, tools, or null."),
        Column("source_spans", STRINGS, "Ids of the spans that describe it, the outermost first."),
    ),
)
