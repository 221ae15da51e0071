"""No hostile trace ends `ltrain init`, and none writes code or keys of the recipe."""

from pathlib import Path

import polars as pl
from tests.property_examples import examples
from tests.security.hostile import frame, trace

from ltrain_transforms.calls import calls
from ltrain_transforms.rewards import read_evaluations
from ltrain_transforms.starter import Survey, write_starter
from ltrain_transforms.starter.conversations import hold_out, read_conversations
from ltrain_transforms.starter.program import Program, find_functions
from ltrain_transforms.starter.survey import distinct_names

TOGETHER = 20
"""Traces of one store."""


def survey_of(spans: pl.DataFrame) -> Survey:
    """Return the survey of these spans, without a store."""
    rows, _ = calls(spans)
    conversations = read_conversations(spans, rows, read_evaluations(spans, rows)[0])
    tasks, validation = hold_out(conversations.tasks)
    return Survey(
        "prod",
        None,
        "trace",
        executions=1,
        llm_calls=1,
        agents=distinct_names(rows["agent"]),
        tools=distinct_names(rows["name"]),
        offers_tools=True,
        models=distinct_names(rows["model"]),
        tasks=tasks,
        validation=validation,
        conversations=conversations,
        program=Program(function=next(find_functions(spans, None), None)),
    )


def test_no_trace_ends_ltrain_init(tmp_path: Path) -> None:
    for number in range(examples(2_000, change=400) // TOGETHER):
        seeds = range(number * TOGETHER, (number + 1) * TOGETHER)
        folder = tmp_path / str(number)
        write_starter(survey_of(frame([trace(seed) for seed in seeds])), folder)
        for path in folder.glob("*.py"):
            compile(path.read_text(), path.name, "exec")
