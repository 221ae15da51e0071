"""Evaluations are read from spans, events, annotations and log records."""

import json
from collections.abc import Callable
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.otlp import insert_otlp
from tests.property_examples import examples
from tests.transforms.test_fixtures import insert_logs, requests

from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.rewards import read_evaluations
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.tables import CALLS, SPANS

ReadBack = Callable[[Any], pl.DataFrame]
JUDGE = "judge"


def stored(store: Store, name: str) -> pl.DataFrame:
    """Return a capture's spans, through OTLP and chDB."""
    for request in requests(name, stamped=False):
        insert_otlp(store, request)
    spans, drops = read_spans(store, Source(), Selection())
    assert drops.is_empty()
    return spans


def counted_rows(spans: pl.DataFrame) -> list[tuple[Any, ...]]:
    counted, _ = read_evaluations(spans, calls(spans)[0])
    return counted.select("call_id", "name", "source", "value", "evidence").rows()


def reasons(spans: pl.DataFrame) -> list[tuple[str, str]]:
    drops = read_evaluations(spans, calls(spans)[0])[1]
    return sorted(drops.select("id", "reason").rows())


def test_agent_lightnings_annotations_are_read(store: Store) -> None:
    spans = stored(store, "reward__agentlightning-0.3.0.otlp.json")
    assert spans["execution_id"].unique().to_list() == ["ro-1.at-0"]
    assert sorted(counted_rows(spans), key=str) == [
        (None, "efficiency", "agent", 0.8, "09062b4e03d3e35f"),
        (None, "primary", "agent", 0.5, "1a60bdb48ecf393b"),
        (None, "task_completion", "agent", 1.0, "09062b4e03d3e35f"),
    ]
    assert reasons(spans) == [("55b3de9f38608026", "repeated")]


def test_opentelemetrys_and_openinferences_are_read(store: Store) -> None:
    """An agent's span has score 1 in an event and an annotation; a later span has 0, twice."""
    spans = stored(store, "reward__otel-and-openinference.otlp.json")
    assert counted_rows(spans) == [(None, "reward", "agent", 0.0, "184ac4b0208dae12")]
    early, late = "186b79b670a761f3", "184ac4b0208dae12"
    assert reasons(spans) == [(late, "repeated"), (early, "repeated"), (early, "repeated")]


def test_a_log_record_is_read(store: Store) -> None:
    insert_logs(store, "reward__otel-and-openinference")
    spans = stored(store, "reward__otel-and-openinference.otlp.json")
    agent = spans.filter(span_id="186b79b670a761f3")
    bare = agent.with_columns(
        attributes=pl.Series([{}], dtype=SPANS.schema["attributes"]), events=pl.lit("[]")
    )
    assert counted_rows(bare) == [(None, "reward", "agent", 1.0, "186b79b670a761f3")]
    assert counted_rows(spans)[0][3] == 0.0, "the carrier span ended later"


def test_a_log_record_outside_of_spans_judges_the_rollout(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    rollout.emit("chat", "sdk", {"gen_ai.operation.name": "chat"})
    fields = {"gen_ai.evaluation.name": "mood", "gen_ai.evaluation.score.value": "0.5"}
    made = json.dumps([["gen_ai.evaluation.result", None, json.dumps(fields), 7, "agent", False]])
    logged = read_back(scene).with_columns(
        logs=pl.when(pl.col("name") == "chat").then(pl.lit(made))
    )
    [(execution, name, _, value, evidence)] = counted_rows(logged)
    assert (execution, name, value) == (None, "mood", 0.5)
    assert evidence == f"log of {logged['execution_id'][0]} at 7"


def test_scores_in_all_places_of_one_span_are_judged_together(
    scene: Any, read_back: ReadBack
) -> None:
    rollout = scene.attempt()
    event = ("gen_ai.evaluation.result", {"gen_ai.evaluation.score.value": 0.5})
    own = {"annotations.0.annotation.name": "reward", "annotations.0.annotation.score": 0.25}
    call = rollout.emit("chat", "sdk", {"gen_ai.operation.name": "chat", **own}, events=[event])
    spans = read_back(scene)
    assert counted_rows(spans) == [(call, "reward", "agent", 0.5, call)]
    late = int(spans["end"].max()) + 1  # type: ignore[arg-type]
    fields = {"gen_ai.evaluation.score.value": "0.75"}
    made = json.dumps(
        [["gen_ai.evaluation.result", None, json.dumps(fields), late, "runner", True]]
    )
    logged = spans.with_columns(logs=pl.when(pl.col("span_id") == call).then(pl.lit(made)))
    assert sorted(counted_rows(logged)) == [
        (call, "reward", "agent", 0.5, call),
        (call, "reward", "runner", 0.75, call),
    ]
    agents = logged.with_columns(pl.col("logs").str.replace("runner", "agent", literal=True))
    assert counted_rows(agents) == [(call, "reward", "agent", 0.75, call)]
    assert reasons(agents) == [(call, "repeated"), (call, "repeated")]


def test_an_annotation_judges_its_span_or_the_execution(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    chat = {"gen_ai.operation.name": "chat"}

    def annotation(prefix: str, name: str, score: float) -> dict[str, Any]:
        return {f"{prefix}.name": name, f"{prefix}.score": score}

    own = annotation("annotations.0.annotation", "quality", 0.5)
    own |= annotation("evaluations.1.evaluation", "style", 0.25)
    own |= annotation("trace.evaluations.0.evaluation", "reward", 1.0)
    own |= annotation("session.annotations.0.annotation", "mood", 0.75)
    call = rollout.emit("chat", "sdk", {**chat, **own, "annotations.0.annotation.label": "fine"})
    assert sorted(counted_rows(read_back(scene)), key=lambda row: str(row[1])) == [
        (None, "mood", "agent", 0.75, call),
        (call, "quality", "agent", 0.5, call),
        (None, "reward", "agent", 1.0, call),
        (call, "style", "agent", 0.25, call),
    ]


def test_agent_lightnings_link_identifies_the_call(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    chat = {"gen_ai.operation.name": "chat", "gen_ai.response.id": "chatcmpl-7"}
    call = rollout.emit("chat", "sdk", chat)
    rollout.emit("chat", "sdk", {**chat, "gen_ai.response.id": "chatcmpl-8"})
    link = {
        "agentlightning.link.0.key_match": "gen_ai.response.id",
        "agentlightning.link.0.value_match": "chatcmpl-7",
    }
    for name, score in (("primary", 1.0), ("late", 0.5)):
        reward = {"agentlightning.reward.0.name": name, "agentlightning.reward.0.value": score}
        rollout.emit("agentlightning.annotation", "agl", {**reward, **link})
    scores = [(judged, name, value) for judged, name, _, value, _ in counted_rows(read_back(scene))]
    assert sorted(scores) == [(call, "late", 0.5), (call, "primary", 1.0)]


def test_a_score_that_is_no_number_is_a_drop(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    rollout.llm()
    numbers = ("much", float("nan"), float("inf"), 1e308, "")
    ids = [rollout.evaluate(value, f"n{at}") for at, value in enumerate(numbers)]
    spans = read_back(scene)
    assert counted_rows(spans) == []
    expected = ("no_value", "not_finite", "not_finite", "not_finite", "no_value")
    assert reasons(spans) == sorted(zip(ids, expected, strict=True))


def test_different_scores_of_one_moment_contradict_each_other(
    scene: Any, read_back: ReadBack
) -> None:
    rollout = scene.attempt()
    rollout.llm()
    first = rollout.evaluate(1.0)
    at = {"start": rollout.clock, "end": rollout.clock}
    one, other = rollout.evaluate(0.0, **at), rollout.evaluate(1.0, **at)
    alike = [rollout.evaluate(0.5, "style", **at) for _ in range(2)]
    spans = read_back(scene)
    assert counted_rows(spans) == [(None, "style", "runner", 0.5, max(alike))]
    assert reasons(spans) == sorted(
        [
            (first, "repeated"),
            (one, "contradictory"),
            (other, "contradictory"),
            (min(alike), "repeated"),
        ]
    )
    detail = read_evaluations(spans, calls(spans)[0])[1].filter(reason="contradictory")["detail"][0]
    assert (
        detail == "evaluations 'reward' of the same target, moment and source differ: none counts"
    )


def test_the_last_event_of_a_span_counts(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    events = [
        ("gen_ai.evaluation.result", {"gen_ai.evaluation.score.value": score})
        for score in (0.0, 1.0)
    ]
    call = rollout.emit("chat", "sdk", {"gen_ai.operation.name": "chat"}, events=events)
    spans = read_back(scene)
    assert counted_rows(spans) == [(call, "reward", "agent", 1.0, call)]
    assert reasons(spans) == [(call, "repeated")]


SCORES = st.lists(
    st.tuples(
        st.sampled_from("ef"),
        st.sampled_from(["reward", "style"]),
        st.sampled_from(["0", "1", "nan", "much"]),
        st.integers(0, 2),
    ),
    max_size=10,
)


@settings(max_examples=examples(50))
@given(scores=SCORES, order=st.randoms(use_true_random=False))
def test_every_evaluation_counts_once_or_is_a_drop_in_any_order(
    scores: list[tuple[str, str, str, int]], order: Any
) -> None:
    rows = [
        {
            "execution_id": execution,
            "span_id": str(at),
            "scope": JUDGE,
            "name": "gen_ai.evaluation.result",
            "start": start,
            "attributes": {
                "gen_ai.evaluation.name": name,
                "gen_ai.evaluation.score.value": score,
            },
        }
        for at, (execution, name, score, start) in enumerate(scores)
    ]
    columns = {name: [row.get(name) for row in rows] for name in SPANS.schema}
    spans = pl.DataFrame(columns, SPANS.schema)
    counted, drops = read_evaluations(spans, CALLS.empty())
    assert sorted([*counted["evidence"], *drops["id"]]) == sorted(spans["span_id"])
    assert counted.select("execution_id", "name").is_duplicated().sum() == 0
    mixed = list(range(spans.height))
    order.shuffle(mixed)
    again = read_evaluations(spans[mixed], CALLS.empty())
    for one, other in zip((counted, drops), again, strict=True):
        assert sorted(one.rows(), key=repr) == sorted(other.rows(), key=repr)
