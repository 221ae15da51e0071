"""Ends spans with prompts of so many letters; prints what they cost on their way, in CPU us a span.

`encode`: to serialise them, as every exporter must. `spool`: to write them to a file before `end()`
returns, and to delete that once a request of 100 spans is acknowledged.
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

from ltrain_instrument.encoding import SpanEncoder
from ltrain_instrument.spool import Spool

SPANS, TURNS = 100, 50
NOBODY = "http://127.0.0.1:9"


class Kept(SpanProcessor):
    """Keeps the ended spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep it."""
        self.spans.append(span)


def ended(letters: int) -> list[ReadableSpan]:
    """Return spans as an instrumentor makes them."""
    kept = Kept()
    provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    provider.add_span_processor(kept)
    tracer = provider.get_tracer("agent")
    text = {"gen_ai.input.messages": "lorem ipsum " * (letters // 12), "gen_ai.request.model": "m"}
    counts = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 3}
    for number in range(SPANS):
        tracer.start_span(f"chat {number}", attributes={**text, **counts}).end()
    return kept.spans


def cost(work: Callable[[], object]) -> float:
    """Return CPU microseconds a span, of this thread."""
    before = time.thread_time()
    work()
    return 1e6 * (time.thread_time() - before) / SPANS


def spooled(folder: Path, requests: list[bytes]) -> float:
    """Return what writing, handing to the sender and deleting costs."""
    spool = Spool(folder, NOBODY, batch_delay=3600)
    spool.flush(10)  # it has looked for what others left

    def write() -> None:
        for request in requests:
            spool.append(request)

    def hand_over() -> None:
        segment = spool._take_own()
        assert segment is not None, "nothing was written"
        for batch in segment.batches(8 << 20):
            b"".join(record.request for record in batch)
        segment.remove()

    took = cost(write) + cost(hand_over)
    spool.close(0)
    return took


def main() -> None:
    spans, encoder = ended(int(sys.argv[1])), SpanEncoder()
    encode, spool = [], []
    with tempfile.TemporaryDirectory(prefix="ltrain-spooling-") as name:
        for _ in range(TURNS):
            requests: list[bytes] = []
            encode.append(cost(lambda: requests.extend(map(encoder.encode_request, spans))))  # noqa: B023
            spool.append(spooled(Path(name), requests))
    # The least of all turns is what it costs where nothing else uses the caches
    found = {"encode": median(encode), "spool": median(spool), "spool_least": min(spool)}
    print(json.dumps({what: round(took, 1) for what, took in found.items()}))


if __name__ == "__main__":
    main()
