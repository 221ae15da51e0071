"""What a rule reads beside the columns of `calls` and `executions`."""

import polars as pl

from ltrain_transforms.tables.column import EXECUTION, FLAG, FLOAT, STRING, Column, Table

SIGNALS = Table(
    "signals",
    "One call; each column is computed only where a rule names it.",
    (
        Column("answer", STRING, "An LLM call's text, without its requests for tools; else null."),
        Column("final", FLAG, "An LLM call has an answer, and no later one of the execution has."),
        Column("seconds", FLOAT, "How long the call took."),
        Column("depth", pl.Int32(), "How many agents that ask a model themselves enclose it."),
        Column("script_mix", FLOAT, "Share of the answer's letters beside its main script."),
        Column("foreign_script", FLOAT, "Share of its letters in scripts that the input lacks."),
        Column("unknown_tools", pl.Int32(), "Requests for tools that the call was not offered."),
        Column("invalid_requests", pl.Int32(), "Requests that break the schema of their tool."),
        Column("used", FLAG, "A tool's result, new to its requester, is said again by a later LLM "
               "call; null where it holds nothing new or no call is later."),
        Column("fits", FLAG, "The answer or result is JSON of the rule's `schema`."),
    ),
)  # fmt: skip

GROUP_STATS = Table(
    "standing",
    "One execution beside its group: those of it that are not superseded and ended by themselves.",
    (
        EXECUTION,
        Column("reward", FLOAT, "Its outcome before gates and rules over the rollout, or null."),
        Column("group_size", pl.Int32(), "How many executions its group has."),
        Column("group_reward", FLOAT, "The mean of their rewards."),
        Column("group_wall", FLOAT, "The median of their wall clocks, seconds."),
        Column("group_critical_path", FLOAT, "The median of their critical paths, seconds."),
    ),
)
