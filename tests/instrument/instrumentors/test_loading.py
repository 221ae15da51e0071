"""The instrumentor that httpx and httpx2 share is loaded as OpenTelemetry ships it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.instrument.conftest import Model, Sink, Start

LIBRARIES = ("httpx", "httpx2")


def test_for_httpx2_the_command_line_of_httpx_is_not_imported(start: Start) -> None:
    modules = ["httpx2", "httpx", "httpx._main", "rich", "click"]
    assert start("loaded", "--import", "httpx2", *modules).wait() == (0, "httpx2 httpx\n", "")


@pytest.mark.parametrize("order", [LIBRARIES, LIBRARIES[::-1]], ids="-".join)
def test_httpx_and_httpx2_are_both_instrumented(
    start: Start, sink: Sink, model: Model, order: tuple[str, str]
) -> None:
    assert start("shared", *order, f"{model.url}/v1/nothing").wait() == (0, "", "")
    spans = sink.named("POST")
    assert [span.scope for span in spans] == ["opentelemetry.instrumentation.httpx"] * 2
    sent = [headers["traceparent"].split("-")[2] for _, headers, _ in model.requests]
    assert sent == [span.id for span in spans]
