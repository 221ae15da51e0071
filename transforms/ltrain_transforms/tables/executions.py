"""The table `executions`: attempts, sessions and traces."""

import polars as pl

from ltrain_transforms.tables.column import (
    EXECUTION,
    FLAG,
    FLOAT,
    INTEGER,
    STRING,
    STRINGS,
    Column,
    Table,
)

EXECUTION_CONTENTS = ("task_input", "task_fields", "result")
"""Columns of content. Credit, gates and SQL rules do not read them: they may be large."""

EXECUTIONS = Table(
    "executions",
    "One attempt at a rollout, or one session or trace without a rollout.",
    (
        EXECUTION,
        Column("rollout_id", STRING, "The rollout, or null."),
        Column("attempt", pl.Int32(), "Number of the attempt in their order, from 1."),
        Column("run_id", STRING, "The run."),
        Column("task_id", STRING, "The task."),
        Column(
            "task_key",
            STRING,
            "The task; where no span names one, a digest of the first request: system prompt, "
            "messages and tools. Null where that is not recorded completely.",
        ),
        Column("domain", STRING, "The task's domain."),
        Column("mode", STRING, "train, val, test or prod."),
        Column("wave", pl.Int32(), "The wave of the run."),
        Column("sample_index", pl.Int32(), "The number of the rollout within its task and wave."),
        Column(
            "group_id",
            STRING,
            "Run, mode, wave and task: estimators compare executions of one group.",
        ),
        Column("session_id", STRING, "The conversation id on its spans, or null."),
        Column("outcome", STRING, "ok, error, timeout, infra, cancelled; null while it runs."),
        Column("task_input", STRING, "The task's input as JSON; null where none was recorded."),
        Column(
            "task_fields",
            STRING,
            "JSON object of the task's further fields, such as the expected answer; null where "
            "none was recorded.",
        ),
        Column("result", STRING, "What the agent returned, as JSON; null where none was recorded."),
        Column(
            "altered",
            FLAG,
            "Whether task or result were shortened or redacted before they were recorded.",
        ),
        Column("start", INTEGER, "Its first span's start."),
        Column(
            "end", INTEGER, "Its last span's end, without evaluations and reports of processes."
        ),
        Column("wall", FLOAT, "Seconds from start to end; null where a clock ran backwards."),
        Column(
            "critical_path",
            FLOAT,
            "Seconds of the longest chain of calls; null without calls, or where a clock ran "
            "backwards.",
        ),
        Column("llm_calls", pl.Int32(), "LLM calls read from its spans."),
        Column("tool_calls", pl.Int32(), "Tool calls read from its spans."),
        Column("traces", pl.Int32(), "Number of traces of its spans."),
        Column("spans_expected", pl.Int32(), "Spans that its processes report to have ended."),
        Column("spans_seen", pl.Int32(), "Of those, the spans that arrived."),
        Column(
            "closed_by",
            STRING,
            "How it finished: runner, processes or idle; null where it has not.",
        ),
        Column("dispatched", FLAG, "Whether a runner dispatched or closed it."),
        Column(
            "complete",
            FLAG,
            "It finished, and all spans of trusted processes arrived; without a runner, all spans "
            "of any process.",
        ),
        Column(
            "withheld",
            FLAG,
            "Spans are missing that the agent's own process reported: the attempt counts as "
            "failed.",
        ),
        Column("superseded", FLAG, "A later attempt replaced it."),
        Column("source_spans", STRINGS, "Ids of its dispatch, closing and process spans."),
    ),
)
