"""httpx and httpx2 share an instrumentor; a library that the agent does not use stays unloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.instrument.conftest import Model, Sink, Start

LIBRARIES = ("httpx", "httpx2")


@pytest.mark.parametrize("how", ["imports", "asks"])
@pytest.mark.parametrize("order", [LIBRARIES, LIBRARIES[::-1]], ids="-".join)
def test_each_is_instrumented_when_it_is_used(
    start: Start, sink: Sink, model: Model, order: tuple[str, str], how: str
) -> None:
    assert start("twins", *order, how, f"{model.url}/v1/nothing").wait() == (0, "", "")
    spans = sink.named("POST")
    assert [span.scope for span in spans] == ["opentelemetry.instrumentation.httpx"] * 2
    sent = [headers["traceparent"].split("-")[2] for _, headers, _ in model.requests]
    assert sent == [span.id for span in spans]
