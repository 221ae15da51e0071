"""Callers that do not sample, `traceparent: ...-00`: the agent records all the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_transforms.datasets.pipeline import derive
from ltrain_transforms.recipe import Policy, Recipe, Reward
from ltrain_transforms.source import Selection, read_spans

if TYPE_CHECKING:
    from tests.instrument.conftest import Model, Sink, Start

TRACE, CALLER = "a" * 32, "b" * 16
REWARD = Reward.model_validate({"name": "reward", "evaluation": "reward", "from": "agent"})
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"


def test_a_rollout_below_an_unsampled_caller_is_built(
    start: Start, sink: Sink, model: Model, tmp_path: Path
) -> None:
    assert start("unsampled", UNSAMPLED).wait(120) == (0, "", "")
    names = {"POST /chat", "openai.chat", "gen_ai.evaluation.result", "child", "ltrain.process"}
    assert names == {span.name for span in sink.spans}
    assert {span.trace for span in sink.spans} == {TRACE}
    (server,) = sink.named("POST /chat")
    assert server.parent == CALLER
    ((_, headers, _),) = model.requests
    assert headers["traceparent"].endswith("-01")
    with open_empty_store(tmp_path / "store") as store:
        for _, _, body in sink.requests:
            insert_otlp(store, body)
        recipe = Recipe(policy=(Policy(name="m"),), reward=(REWARD,))
        spans, _ = read_spans(store, recipe.source, Selection(run="demo"))
        tables = derive(spans, recipe).tables
    [execution] = tables["executions"].to_dicts()
    assert (execution["rollout_id"], execution["llm_calls"]) == ("r1", 1)
    assert execution["spans_seen"] == execution["spans_expected"] > 0
    assert tables["rewards"].select(pl.col("value")).rows() == [(1.0,)]


def test_a_process_started_by_an_unsampled_parent_records(start: Start, sink: Sink) -> None:
    start("loaded", TRACEPARENT=UNSAMPLED, LTRAIN_ROLLOUT_ID="r9").wait()
    (span,) = sink.named("in-thread")
    assert (span.trace, span.parent) == (TRACE, CALLER)
    (report,) = sink.named("ltrain.process")
    assert report.attributes["ltrain.rollout.spans"] == 1


@pytest.mark.parametrize("sampler", ["", " "])
def test_an_empty_sampler_is_none(start: Start, sink: Sink, sampler: str) -> None:
    start("loaded", TRACEPARENT=UNSAMPLED, OTEL_TRACES_SAMPLER=sampler).wait()
    assert len(sink.named("in-thread")) == 1


@pytest.mark.parametrize(
    ("sampler", "flag", "spans"),
    [
        ("parentbased_always_on", "00", 0),
        ("parentbased_always_on", "01", 1),
        ("always_off", "01", 0),
        ("always_on", "00", 1),
    ],
)
def test_a_sampler_of_the_user_is_kept(
    start: Start, sink: Sink, sampler: str, flag: str, spans: int
) -> None:
    parent = UNSAMPLED[:-2] + flag
    agent = start("loaded", TRACEPARENT=parent, OTEL_TRACES_SAMPLER=sampler)
    assert agent.wait() == (0, "\n", "")
    assert len(sink.named("in-thread")) == spans
