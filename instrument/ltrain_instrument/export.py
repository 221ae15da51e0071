"""Puts each ended span on disk before `end()` returns; a spool sends it from there."""

import logging
import math
import os
import time
import weakref
from pathlib import Path
from typing import Self

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from ltrain_instrument import settings
from ltrain_instrument.encoding import Encoder
from ltrain_instrument.errors import BadSetting, SpoolFull
from ltrain_instrument.spool import Spool

GATHER = "OTEL_BSP_SCHEDULE_DELAY"
"""Milliseconds that an agent's spans wait, on disk, for others to be sent with."""
RESCAN = 10.0
"""Seconds between two looks of an agent for what dead ones left: hundreds may share a folder."""
MEMORY = 32 << 20
"""Bytes of spans that an agent holds where its disk does not take them."""

_logger = logging.getLogger("ltrain.export")


class SpoolProcessor(SpanProcessor):
    """Appends each ended span to a spool before `end()` returns."""

    def __init__(self, spool: Spool, *, patient: bool = True, strict: bool = False) -> None:
        """Write to `spool`.

        One that is not `patient` flushes only until the collector is seen to be away. A `strict`
        one raises what the disk says from the `end()` of the span that it did not take.
        """
        self._spool, self._patient, self._strict = spool, patient, strict
        self._encoder = Encoder()
        self._until = math.inf
        self._interrupted: list[ReadableSpan] = []
        """Spans whose write an exception of the agent's own signal handler ended."""
        self.lost = 0
        """Spans that neither the disk nor, in time, the collector took."""
        forget = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (forked := forget()) and forked())

    @classmethod
    def for_agent(cls, directory: Path) -> Self:
        """Return one that waits for no collector, and does without a disk while one answers."""
        spool = Spool(directory, limit=_limit(), gather=_gather(), rescan=RESCAN, memory=MEMORY)
        return cls(spool, patient=False)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span counts when it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Write the span to disk; one that cannot be written is counted and warned of."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        self._write(span)
        while self._interrupted:
            self._write(self._interrupted.pop())

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait for the collector's acknowledgement of all spans."""
        while self._interrupted:
            self._write(self._interrupted.pop())
        wait = min(timeout_millis / 1000, self._left)
        return self._spool.flush(wait, patient=self._patient) and self.lost == 0

    def shutdown(self) -> None:
        """Forward what can be forwarded at once and leave the rest on disk."""
        self._spool.close(min(2.0, self._left))

    def hurry(self, until: float) -> None:
        """Wait for nothing after `until` on the monotonic clock."""
        self._until = until

    def unhurried(self) -> None:
        """Wait as before `hurry`, in a process that lives on."""
        self._until = math.inf

    def say_what_waits(self) -> None:
        """Warn, as the process ends, that the collector does not have all."""
        self._spool.say_what_waits()

    def say_what_is_lost(self) -> None:
        """Count and warn of what is in memory only, as the process ends."""
        if self._spool.held:
            self._lose(self._spool.disk_error, self._spool.held)

    @property
    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _write(self, span: ReadableSpan) -> None:
        try:
            self._spool.append(self._encoder.request(span))
        except OSError as error:
            self._lose(error)
            if self._strict:
                raise
        except Exception as error:  # any type may hide in an attribute
            self.lost += 1
            _logger.warning("ltrain: span '%s' cannot be encoded: %s", span.name, error)
        except BaseException:  # raised by a signal handler of the agent
            self._interrupted.append(span)
            raise

    def _lose(self, error: OSError | None, count: int = 1) -> None:
        if not self.lost:
            why = str(error)
            if not isinstance(error, SpoolFull):
                why = (
                    f"{self._spool.directory} cannot be written ({error}). "
                    f"Set {settings.HOME.name} to a folder that can."
                )
            _logger.warning("ltrain: spans are lost: %s", why)
        self.lost += count

    def _forked(self) -> None:
        self._interrupted = []


def _limit() -> int:
    try:
        return settings.SPOOL_LIMIT.read()
    except BadSetting as error:  # a slip here must not cost the agent its spans
        _logger.warning("ltrain: %s The default holds.", error)
        return int(settings.SPOOL_LIMIT.default)


def _gather() -> float:
    """Return seconds; what is no number OpenTelemetry takes for its default."""
    text = os.environ.get(GATHER, "")
    return int(text) / 1000 if text.strip().isdecimal() else 0.5
