"""The metrics of a trial, from spans of calls and evaluations in a store."""

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_transforms.trials import read_evidence, read_history, read_metrics

SECOND = 1_000_000_000


class Calls:
    """Spans of calls and evaluations."""

    def __init__(self, trial: str = "trial") -> None:
        self.trial = trial
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("ltrain.gateway")

    def call(
        self, arm: str, unit: str, *rewards: float, failed: bool = False, at: float = 1.0
    ) -> None:
        """Add a call that begins at a time, in Unix seconds, and is judged 0 s, 1 s … later."""
        began = int(at * SECOND)
        names = {"id": self.trial, "arm": arm, "unit": unit}
        attributes = {f"ltrain.experiment.{name}": value for name, value in names.items()}
        span = self.tracer.start_span("chat", attributes=attributes, start_time=began)
        if failed:
            span.set_status(StatusCode.ERROR)
        for number, reward in enumerate(rewards):
            score: dict[str, Any] = {"gen_ai.evaluation.name": "thumbs"}
            score["gen_ai.evaluation.score.value"] = reward
            span.add_event("gen_ai.evaluation.result", score, began + number * SECOND)
        span.end(began + 2 * SECOND)

    def insert(self, store: Store) -> None:
        spans = self.exporter.get_finished_spans()
        insert_otlp(store, encode_spans(spans).SerializeToString())


def test_totals_are_over_units(store: Store) -> None:
    calls = Calls()
    calls.call("candidate", "a", 1.0)
    calls.call("candidate", "a", failed=True)
    calls.call("candidate", "b")
    calls.call("current", "c", 0.0, 1.0)  # the last one counts
    calls.insert(store)
    found = {each.name: each for each in read_metrics(store, "trial")}
    assert list(found) == ["failed calls", "seconds of a call", "units with feedback", "thumbs"]
    failed = found["failed calls"].candidate
    assert (failed.units, failed.values, failed.total) == (2, 3, 1)
    assert (failed.values_squared, failed.total_squared, failed.product) == (5, 1, 2)
    assert found["seconds of a call"].current.mean == 2.0
    feedback = found["units with feedback"]
    assert (feedback.candidate.mean, feedback.current.mean) == (0.5, 1.0)
    thumbs = found["thumbs"]
    assert (thumbs.candidate.mean, thumbs.current.mean) == (1.0, 1.0)
    assert (thumbs.candidate.units, thumbs.current.units) == (1, 1)


def test_an_arm_without_values_has_none(store: Store) -> None:
    calls = Calls()
    calls.call("current", "c", 1.0)
    calls.insert(store)
    for metric in read_metrics(store, "trial"):
        assert metric.candidate.units == 0


@pytest.mark.parametrize("experiment", ["", "another"])
def test_another_experiment_has_no_metrics(store: Store, experiment: str) -> None:
    calls = Calls()
    calls.call("current", "c", 1.0)
    calls.insert(store)
    assert read_metrics(store, experiment) == []


def test_a_history_has_the_metrics_as_they_were(store: Store) -> None:
    calls = Calls()
    calls.call("candidate", "a", 1.0, 0.0, at=10.0)  # judged again a second later
    calls.call("candidate", "a", at=12.0)
    calls.call("current", "c", 1.0, at=11.0)
    calls.insert(store)
    points = [int(at * SECOND) for at in (9.0, 10.5, 12.5, 20.0)]
    before, first, late, settled = (
        {each.name: each for each in metrics}
        for metrics in read_history(store, "trial", points, 1 * SECOND)
    )
    assert before == {}
    assert first["failed calls"].candidate.values == 1 and "thumbs" not in first
    assert late["failed calls"].candidate.values == 2
    assert late["thumbs"].candidate.mean == 0.0 and late["thumbs"].current.mean == 1.0
    assert settled == {each.name: each for each in read_metrics(store, "trial")}


def test_the_evidence_is_the_worst_of_each_arm(store: Store) -> None:
    calls = Calls()
    for unit, value in (("a", 1.0), ("b", 0.0), ("c", 0.5)):
        calls.call("candidate", unit, value)
    calls.call("candidate", "d", failed=True)
    calls.call("current", "e")
    calls.insert(store)
    rows = read_evidence(store, "trial", "thumbs", 2)
    assert rows.select("arm", "unit", "value", "failed").rows() == [
        ("candidate", "b", 0.0, 0.0),
        ("candidate", "c", 0.5, 0.0),
        ("current", "e", None, 0.0),
    ]
