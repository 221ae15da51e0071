"""End spans with prompts of LETTERS characters and print the CPU microseconds per span.

`encode` is the serialization, which every exporter needs. `spool` is the write to a file before
`end()` returns, and its deletion after a request of 100 spans is acknowledged.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from ltrain_instrument.delivery import SpanEncoder, Spool

SPANS, TURNS = 100, 50
UNREACHABLE = "http://127.0.0.1:9"


class SpanRecorder(SpanProcessor):
    """Records the ended spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Record a span."""
        self.spans.append(span)


def ended_spans(letters: int) -> list[ReadableSpan]:
    """Return spans like those of an instrumentor."""
    recorder = SpanRecorder()
    provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    provider.add_span_processor(recorder)
    tracer = provider.get_tracer("agent")
    text = {"gen_ai.input.messages": "lorem ipsum " * (letters // 12), "gen_ai.request.model": "m"}
    counts = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 3}
    for number in range(SPANS):
        tracer.start_span(f"chat {number}", attributes={**text, **counts}).end()
    return recorder.spans


def cost(work: Callable[[], object]) -> float:
    """Return the CPU microseconds per span of this thread."""
    before = time.thread_time()
    work()
    return 1e6 * (time.thread_time() - before) / SPANS


def spool_cost(folder: Path, requests: list[bytes]) -> float:
    """Return the cost of writing, handing over to the sender, and deleting."""
    spool = Spool(folder, UNREACHABLE, batch_delay=3600)
    spool.flush(10)  # after it has scanned the folder

    def write() -> None:
        for request in requests:
            spool.append(request)

    def hand_over() -> None:
        segment = spool._take_own()
        assert segment is not None, "nothing was written"
        for batch in segment.batches(8 << 20):
            b"".join(record.request for record in batch)
        segment.remove()

    total = cost(write) + cost(hand_over)
    spool.close(0)
    return total


def main() -> None:
    spans, encoder = ended_spans(int(sys.argv[1])), SpanEncoder()
    encode, spool = [], []
    with tempfile.TemporaryDirectory(prefix="ltrain-spooling-") as name:
        for _ in range(TURNS):
            requests: list[bytes] = []
            encode.append(cost(lambda: requests.extend(map(encoder.encode_request, spans))))  # noqa: B023
            spool.append(spool_cost(Path(name), requests))
    # The minimum is the cost when nothing else uses the caches
    costs = {"encode": median(encode), "spool": median(spool), "spool_least": min(spool)}
    print(json.dumps({name: round(value, 1) for name, value in costs.items()}))


if __name__ == "__main__":
    main()
