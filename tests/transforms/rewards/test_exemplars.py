"""Exemplars of metrics: measurements of OpenTelemetry's SDK in the calls whose spans they name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from tests.up import Up, start_up

from ltrain_collector.store import Store
from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import report_rules
from ltrain_transforms.source import Selection, read_spans

DURATION = "gen_ai.client.operation.duration"
RECIPE = f"""
source = {{ execution = "trace", mode = "all" }}
policy = [{{ name = "p" }}]

[[reward]]
name = "slow"
on = "signal"
when = "record = 'exemplar' AND name = '{DURATION}' AND value > 5"
value = "-0.1 * value"

[[reward]]
name = "any"
on = "signal"
when = "record <> 'span'"
value = "-1"
"""
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "w"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = start_up(tmp_path_factory.mktemp("up") / "store")
    yield running
    assert running.stop() == 0


class Program:
    """An agent with OpenTelemetry's SDK, whose view keeps the model out of the data points."""

    def __init__(self, up: Up, name: str) -> None:
        resource = Resource({"service.name": name, "service.instance.id": name})
        self.tracers = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(f"{up.endpoint}/v1/traces")
        self.tracers.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = self.tracers.get_tracer("agent")
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{up.endpoint}/v1/metrics"), export_interval_millis=float("inf")
        )
        self.meters = MeterProvider(
            [reader],
            resource,
            exemplar_filter=TraceBasedExemplarFilter(),
            views=[View(instrument_name=DURATION, attribute_keys={"error.type"})],
        )
        meter = self.meters.get_meter("agent.metrics")
        self.duration = meter.create_histogram(DURATION, "s")
        self.other = meter.create_histogram("other", "By")

    def run(self) -> dict[str, str]:
        """Measure inside and beside calls; return the spans of the calls by name."""
        start = self.tracer.start_as_current_span
        self.duration.record(60)  # of no span
        with start("agent", attributes={"gen_ai.operation.name": "invoke_agent"}) as agent:
            with start("chat", attributes=CHAT) as chat:
                self.duration.record(7, {"gen_ai.request.model": "m", "error.type": "Late"})
                self.duration.record(3)
            with start("tool", attributes=TOOL) as tool, start("POST"):
                self.duration.record(20)  # below the tool
                self.other.record(900)
                self.meters.force_flush()  # a later export has only what is new
            self.duration.record(40)
        spans = {"agent": agent, "chat": chat, "tool": tool}
        return {name: f"{span.get_span_context().span_id:016x}" for name, span in spans.items()}


@pytest.mark.parametrize("first", ["metrics", "traces"])
def test_an_exemplar_is_in_the_call_whose_span_it_names(up: Up, tmp_path: Path, first: str) -> None:
    (tmp_path / "ltrain.toml").write_text(RECIPE)
    recipe = Recipe.load(tmp_path / "ltrain.toml")
    program = Program(up, first)
    calls = program.run()
    providers: list[Any] = [program.meters, program.tracers]
    for provider in providers if first == "metrics" else reversed(providers):
        provider.force_flush()
        provider.shutdown()
    with Store.open(up.dsn) as store:
        own = {"where": f"ServiceName = '{first}'"}
        source = recipe.source.model_copy(update=own)
        spans, drops = read_spans(store, source, Selection(), metrics=recipe.metrics)
        without, _ = read_spans(store, source, Selection())
        report = report_rules(store, recipe.model_copy(update={"source": source}), Selection())
    assert drops.is_empty() and without["exemplars"].null_count() == without.height
    names = {name for text in spans["exemplars"].drop_nulls() for name in ["other"] if name in text}
    assert names == set()  # no rule reads it
    rewards = derive(spans, recipe).tables["rewards"].sort("value")
    post = spans.filter(name="POST")["span_id"].item()
    assert rewards.select("call_id", "rule", "value", "evidence").rows() == [
        (calls["agent"], "slow", -4.0, calls["agent"]),
        (calls["tool"], "slow", -2.0, post),
        (calls["chat"], "slow", pytest.approx(-0.7), calls["chat"]),
    ]
    slow = report.rules[0]
    assert (slow.fired, slow.executions, len(slow.examples)) == (3, 1, 1)
