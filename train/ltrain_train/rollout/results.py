"""The worker's way back: results as JSON lines, each after its rollout's spans are flushed.

Results that end within a few hundredths of a second share one flush, so that a wave's flushes do
not queue up behind each other.
"""

import json
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

from ltrain_instrument import flush
from ltrain_train.rollout.attempt import Ending, Outcome

TOGETHER = 0.04
"""Seconds that a result waits for others to share its flush."""
LONGEST_REASON = 500
LARGEST_RESULT = 16 << 20
"""Characters of a result as JSON."""
FLUSH = 5.0
"""Seconds a flush may take; the spans that it leaves are on their way all the same."""


class Results:
    """Sends what it is given; safe to use from several threads."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[str, Ending]] = queue.SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()

    def put(self, attempt: str, ending: Ending) -> None:
        """Send how `attempt` ended, after its spans."""
        self._waiting.put((attempt, ending))

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a line at once."""
        self._write(json.dumps(message))

    def _write(self, line: str) -> None:
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()

    def _send(self) -> None:
        while True:
            ended = [self._waiting.get()]
            time.sleep(TOGETHER)
            while not self._waiting.empty():
                ended.append(self._waiting.get())
            flush(FLUSH)
            for attempt, ending in ended:
                self._write(_line(attempt, ending))


def _line(attempt: str, ending: Ending) -> str:
    message = {"id": attempt, "outcome": ending.outcome.value, "reason": ending.reason}
    try:
        line = json.dumps({**message, "result": ending.result}, allow_nan=False)
    except Exception as error:  # a result of the agent's own classes may raise anything
        why = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
    else:
        if len(line) <= LARGEST_RESULT:
            return line
        why = f"it has {len(line)} characters, and may have {LARGEST_RESULT}"
    reason = f"The agent's result must be JSON (dict, list, str, number, bool, None): {why}"
    return json.dumps({**message, "outcome": Outcome.ERROR.value, "reason": reason})
