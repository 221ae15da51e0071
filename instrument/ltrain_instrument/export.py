"""The agents' exporter: straight to the collector, and to disk when the collector is away."""

import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from ltrain_instrument import settings
from ltrain_instrument.courier import Courier
from ltrain_instrument.delivery import Delivery, Fate, traces_url
from ltrain_instrument.errors import BadSetting, SpoolFull
from ltrain_instrument.segment import SUFFIX
from ltrain_instrument.spool import LIMIT, Spool

PATIENCE = 2.0
"""Seconds to wait for an answer; later it is the spool's, which waits on its own time."""

_logger = logging.getLogger("ltrain.export")


class SpoolingExporter(SpanExporter):
    """Never blocks for long and never fails: a request is sent, or it is on disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._limit = _limit()
        self._courier = Courier(Delivery(traces_url(), timeout=PATIENCE))
        # What dead processes left is forwarded by who comes next
        self._spool = self._opened() if any(directory.glob(f"*{SUFFIX}")) else None
        self._until = math.inf
        self._pid = os.getpid()
        self._instance = ""
        self.lost = 0
        """Spans that neither the collector nor the disk took."""

    def _opened(self) -> Spool:
        return Spool(self._directory, limit=self._limit)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hand over the spans, in requests of at most 8 MiB."""
        for count, request in self._requests(spans):
            if not self._handed_over(request):
                self.lost += count
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait for the collector, unless it is away: what it lacks is on disk."""
        wait = min(timeout_millis / 1000, self._left)
        if self._spool is not None and not self._spool.flush(wait, patient=False):
            return False
        return self.lost == 0

    def hurry(self, until: float) -> None:
        """Send nothing after `until` on the monotonic clock: what comes then goes to disk."""
        self._until = until
        self._courier.hurry(until)

    def unhurried(self) -> None:
        """Take the time there is again, in a forked child."""
        self._until = math.inf

    def shutdown(self) -> None:
        """Leave what the collector lacks on disk."""
        if self._spool is not None:
            self._spool.close(min(PATIENCE, self._left))

    def say_what_waits(self) -> None:
        """Warn, as the process ends, that the collector does not have all."""
        if self._spool is not None:
            self._spool.say_what_waits()

    @property
    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _handed_over(self, request: bytes) -> bool:
        if self._spool is not None and not self._spool.empty:
            return self._kept(request)  # it is the spool that finds out when the collector is back
        if not self._left:
            return self._kept(request)
        receipt = self._courier.post(request, PATIENCE)
        if receipt.fate is Fate.TAKEN:
            return True
        kept = self._kept(request)
        if self._spool is not None and kept:
            self._spool.note(receipt)
        return kept

    def _kept(self, request: bytes) -> bool:
        try:
            self._spool = self._spool or self._opened()
            self._spool.append(request)
        except SpoolFull as error:
            self._lose(str(error))
            return False
        except OSError as error:
            self._lose(
                f"the collector at {self._courier.delivery.url} is away and {self._directory} "
                f"cannot be written ({error}). Set LTRAIN_HOME to a folder that can."
            )
            return False
        return True

    def _lose(self, reason: str) -> None:
        if not self.lost:
            _logger.warning("ltrain: spans are lost: %s", reason)

    def _requests(self, spans: Sequence[ReadableSpan]) -> Iterator[tuple[int, bytes]]:
        try:
            request = self._encode(spans)
        except Exception as error:  # any type may hide in an attribute; its neighbours must pass
            if len(spans) == 1:
                self.lost += 1
                _logger.warning("ltrain: span '%s' cannot be encoded: %s", spans[0].name, error)
                return
        else:
            if len(request) <= LIMIT or len(spans) == 1:
                yield len(spans), request
                return
        half = len(spans) // 2
        yield from self._requests(spans[:half])
        yield from self._requests(spans[half:])

    def _encode(self, spans: Sequence[ReadableSpan]) -> bytes:
        message = encode_spans(spans)
        if os.getpid() != self._pid:
            # A forked child inherits its parent's resource, but counts its spans on its own
            self._pid, self._instance = os.getpid(), str(uuid4())
        if self._instance:
            for group in message.resource_spans:
                for pair in group.resource.attributes:
                    if pair.key == SERVICE_INSTANCE_ID:
                        pair.value.string_value = self._instance
        encoded: bytes = message.SerializeToString()
        return encoded


def _limit() -> int:
    try:
        return settings.SPOOL_LIMIT.read()
    except BadSetting as error:  # a slip here must not cost the agent its spans
        _logger.warning("ltrain: %s The default holds.", error)
        return int(settings.SPOOL_LIMIT.default)
