"""Ids of spans: random ones, or ones that were chosen before the span begins."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.sdk.trace import RandomIdGenerator

_chosen: ContextVar[tuple[int, int | None] | None] = ContextVar("ltrain-chosen-ids", default=None)


class SpanIds(RandomIdGenerator):
    """An id generator with which a trace may have several root spans."""

    @contextmanager
    def choose(self, trace: int, span: int | None = None) -> Iterator[None]:
        """Use a trace, and a span id if one is named, for the root spans of a block."""
        token = _chosen.set((trace, span))
        try:
            yield
        finally:
            _chosen.reset(token)

    def generate_trace_id(self) -> int:
        """Return the chosen trace, else a random id."""
        chosen = _chosen.get()
        return chosen[0] if chosen else super().generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the chosen id, else a random one."""
        chosen = _chosen.get()
        return chosen[1] if chosen and chosen[1] else super().generate_span_id()
