"""Posts requests in a thread of its own, for a caller that must not wait for what hangs.

A name server, a proxy or a collector can hold a thread for minutes; here it is never the agent's,
and never the one that holds OpenTelemetry's export lock.
"""

import contextlib
import math
import os
import threading
import time
import weakref

from ltrain_instrument.delivery import Delivery, Fate, Receipt


class Courier:
    """Takes one request at a time, from one caller at a time."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._reset()
        forked = weakref.WeakMethod(self._reset)
        os.register_at_fork(after_in_child=lambda: (reset := forked()) and reset())

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._request: bytes | None = None
        self._receipt: Receipt | None = None
        self._until = math.inf
        # Now, not at the first request: Python 3.12 starts no thread at interpreter exit
        thread = threading.Thread(target=self._run, name="ltrain-courier", daemon=True)
        with contextlib.suppress(RuntimeError):
            thread.start()

    def hurry(self, until: float) -> None:
        """Let no caller wait longer than `until` on the monotonic clock, present ones included."""
        with self._changed:
            self._until = until
            self._changed.notify_all()

    def post(self, request: bytes, patience: float) -> Receipt:
        """Send one request; without an answer in time it is for later, and may arrive twice."""
        deadline = time.monotonic() + patience
        with self._changed:
            if self._request is not None:
                return self._unanswered()
            self._request, self._receipt = request, None
            self._changed.notify_all()
            while self._receipt is None:
                left = min(deadline, self._until) - time.monotonic()
                if left <= 0:
                    return self._unanswered()
                self._changed.wait(left)
            return self._receipt

    def _unanswered(self) -> Receipt:
        return Receipt(Fate.LATER, f"{self.delivery.url} does not answer")

    def _run(self) -> None:
        changed = self._changed
        while True:
            with changed:
                changed.wait_for(lambda: self._request is not None)
                request = self._request or b""
            receipt = self.delivery.post(request)
            with changed:
                self._request, self._receipt = None, receipt
                changed.notify_all()
