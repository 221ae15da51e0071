"""Attempts, sessions and traces."""

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
        Column("session_id", STRING, "The conversation that its spans name, or null."),
        Column("outcome", STRING, "ok, error, timeout, infra, cancelled; null while it runs."),
        Column("start", INTEGER, "Its first span's start."),
        Column("end", INTEGER, "Its last span's end."),
        Column("wall", FLOAT, "Seconds from start to end; null where a clock ran backwards."),
        Column(
            "critical_path",
            FLOAT,
            "Seconds of the longest chain of calls; null without calls, or where a clock ran "
            "backwards.",
        ),
        Column("llm_calls", pl.Int32(), "LLM calls read from its spans."),
        Column("tool_calls", pl.Int32(), "Tool calls read from its spans."),
        Column("traces", pl.Int32(), "Traces its spans lie in."),
        Column("spans_expected", pl.Int32(), "Spans that its processes said they ended."),
        Column("spans_seen", pl.Int32(), "Of those, the spans that arrived."),
        Column(
            "closed_by",
            STRING,
            "What says that it is over: runner, processes or idle; null where nothing does.",
        ),
        Column("dispatched", FLAG, "A runner dispatched or closed it."),
        Column(
            "complete",
            FLAG,
            "Over, and all spans arrived that processes of trusted senders ended; of an attempt "
            "without a runner, all that any process ended.",
        ),
        Column(
            "withheld",
            FLAG,
            "Spans are missing that the agent's own process says it ended: counts as failed.",
        ),
        Column("superseded", FLAG, "A later attempt took its place."),
        Column("source_spans", STRINGS, "Its dispatch, closing and process spans."),
    ),
)
