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
from ltrain_transforms.trials import read_metrics

SECOND = 1_000_000_000


class Calls:
    """Spans of calls and evaluations."""

    def __init__(self, trial: str = "trial") -> None:
        self.trial = trial
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("ltrain.gateway")

    def call(self, arm: str, unit: str, *rewards: float, failed: bool = False) -> None:
        names = {"id": self.trial, "arm": arm, "unit": unit}
        attributes = {f"ltrain.experiment.{name}": value for name, value in names.items()}
        span = self.tracer.start_span("chat", attributes=attributes, start_time=SECOND)
        if failed:
            span.set_status(StatusCode.ERROR)
        for at, reward in enumerate(rewards):
            score: dict[str, Any] = {"gen_ai.evaluation.name": "thumbs"}
            score["gen_ai.evaluation.score.value"] = reward
            span.add_event("gen_ai.evaluation.result", score, SECOND + at)
        span.end(3 * SECOND)

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
