"""Ends spans of so many letters; prints CPU microseconds a span to encode and to write it."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from ltrain_instrument.encoding import Encoder
from ltrain_instrument.spool import Spool

SPANS, TURNS = 100, 50


class Kept(SpanProcessor):
    """Keeps the ended spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep it."""
        self.spans.append(span)


def ended(letters: int) -> list[ReadableSpan]:
    """Return spans as an instrumentor makes them, with a prompt of so many letters."""
    kept = Kept()
    provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    provider.add_span_processor(kept)
    tracer = provider.get_tracer("agent")
    said = {"gen_ai.input.messages": "lorem ipsum " * (letters // 12), "gen_ai.request.model": "m"}
    counts = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 3}
    for number in range(SPANS):
        tracer.start_span(f"chat {number}", attributes={**said, **counts}).end()
    return kept.spans


def cost(work: Callable[[], object]) -> float:
    """Return CPU microseconds a span."""
    before = time.thread_time()
    work()
    return 1e6 * (time.thread_time() - before) / SPANS


def main() -> None:
    spans, encoder = ended(int(sys.argv[1])), Encoder()
    encode, write = [], []
    with tempfile.TemporaryDirectory(prefix="ltrain-spooling-") as name:
        spool = Spool(Path(name), "http://127.0.0.1:9", gather=3600)
        for _ in range(TURNS):  # a file for each, as for each request of half a second
            requests: list[bytes] = []
            encode.append(cost(lambda r=requests: r.extend(map(encoder.request, spans))))  # type: ignore[misc]
            write.append(cost(lambda r=requests: list(map(spool.append, r))))  # type: ignore[misc]
    print(json.dumps({"encode": median(encode), "write": median(write)}))


if __name__ == "__main__":
    main()
