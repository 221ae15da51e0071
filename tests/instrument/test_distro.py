"""Behaviour of `opentelemetry-instrument` with ltrain installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import ltrain_instrument

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink, Start

BROKEN = """
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

class Broken(BaseInstrumentor):
    def instrumentation_dependencies(self):
        return ()

    def _instrument(self, **kwargs):
        raise RuntimeError("as asked")

    def _uninstrument(self, **kwargs):
        pass
"""


def test_it_takes_precedence_over_the_stock_distro_without_output(start: Start, sink: Sink) -> None:
    assert version("opentelemetry-distro")
    assert start("leaving", "return").wait() == (0, "ready\n", "")
    assert len(sink.named("ltrain.process")) == 0
    assert len(sink.spans) == 6


def test_another_distro_can_be_selected(start: Start, sink: Sink) -> None:
    agent = start(
        "leaving",
        "return",
        OTEL_PYTHON_DISTRO="distro",
        OTEL_PYTHON_CONFIGURATOR="configurator",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_LOGS_EXPORTER="none",
        OTEL_METRICS_EXPORTER="none",
    )
    assert agent.wait()[0] == 0
    assert len(sink.spans) == 5


def test_a_failing_instrumentor_is_one_warning(start: Start, sink: Sink, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    metadata = tmp_path / "aaa_broken-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: aaa-broken\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(
        "[opentelemetry_instrumentor]\nbroken = broken:Broken\nabsent = broken:Absent\n"
    )
    status, _, err = start("client", PYTHONPATH=str(tmp_path)).wait()
    assert status == 0
    lines = err.splitlines()
    assert len(lines) == 2
    assert "instrumentor 'broken' (broken:Broken) failed and is skipped" in lines[0]
    assert "as asked" in lines[0]
    assert "instrumentor 'absent'" in lines[1]
    assert len(sink.named("openai.chat")) == 3


def test_instrumentors_wait_until_the_agent_imports_their_library(start: Start) -> None:
    heavy = ["openai", "langchain_core", "httpx", "httpx2", "torch", "polars"]
    assert start("loaded", *heavy).wait() == (0, "\n", "")


def test_the_environment_passes_trace_and_identity(start: Start, sink: Sink) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    start(
        "loaded",
        TRACEPARENT=f"00-{trace}-b7ad6b7169203331-01",
        BAGGAGE="ltrain.rollout.id=r9,ltrain.attempt.id=3,ltrain.wave=x",
        LTRAIN_ROLLOUT_ID="overruled",
    ).wait()
    (span,) = sink.named("in-thread")
    assert (span.trace, span.parent) == (trace, "b7ad6b7169203331")
    assert span.attributes == {"ltrain.rollout.id": "r9", "ltrain.attempt.id": 3}
    (process,) = sink.named("ltrain.process")
    assert process.trace == trace
    assert process.attributes["ltrain.rollout.spans"] == 1


def test_configure_instruments_from_code(start: Start, sink: Sink) -> None:
    assert start("configured", "all", uninstrumented=True).wait() == (0, "", "")
    assert [span.name for span in sink.spans] == ["work", "ltrain.process"]
    assert {span.attributes["ltrain.rollout.id"] for span in sink.spans} == {"r7"}


def test_configure_leaves_an_existing_set_up_alone(start: Start, sink: Sink) -> None:
    status, out, err = start("configured", "own", uninstrumented=True).wait()
    assert (status, err) == (0, "")
    decoder = json.JSONDecoder()
    first, _ = decoder.raw_decode(out)
    assert first["name"] == "work"
    assert first["attributes"]["ltrain.rollout.id"] == "r7"
    assert sink.spans == []


def test_every_public_name_can_be_imported() -> None:
    names = ("Identity", "configure", "flush", "prompt", "reward", "rollout", "task")
    assert set(names) == set(ltrain_instrument.__all__)
    assert all(getattr(ltrain_instrument, name) for name in names)


def test_import_is_light() -> None:
    code = (
        "import sys, ltrain; "
        "print([m for m in ('torch', 'polars', 'opentelemetry', 'wrapt') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
