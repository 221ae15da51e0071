"""Sends a worker's results as JSON lines, each after the spans of its rollout were flushed.

Results within a few hundredths of a second share one flush, so that flushes do not queue up.
"""

import json
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TextIO
from uuid import UUID

from ltrain_instrument import flush
from ltrain_train.workers.attempt import AttemptResult, Outcome

BATCH_DELAY = 0.04
"""Seconds that a result waits for others that share its flush."""
MAX_REASON_CHARACTERS = 500
MAX_RESULT_CHARACTERS = 16 << 20
"""Maximum characters of a result as JSON."""
FLUSH_TIMEOUT = 5.0
"""Maximum seconds of a flush; spans that are left then are still sent later."""


class ResultSender:
    """Sends results and messages; safe to use from several threads."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[str, AttemptResult]] = queue.SimpleQueue()
        threading.Thread(target=self._send_batches, daemon=True).start()

    def put(self, attempt: str, result: AttemptResult) -> None:
        """Queue an attempt's result, to be sent after its spans; its time limit ends now."""
        self.send_now({"id": attempt, "returned": True})
        self._queue.put((attempt, result))

    def send_now(self, message: Mapping[str, Any]) -> None:
        """Send a message at once."""
        self._write(json.dumps(message))

    def _write(self, line: str) -> None:
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()

    def _send_batches(self) -> None:
        while True:
            batch = [self._queue.get()]
            time.sleep(BATCH_DELAY)
            while not self._queue.empty():
                batch.append(self._queue.get())
            flush(FLUSH_TIMEOUT)
            for attempt, result in batch:
                self._write(_encode_result(attempt, result))


def _encode_result(attempt: str, result: AttemptResult) -> str:
    message = {"id": attempt, "outcome": result.outcome.value, "reason": result.reason}
    try:
        line = json.dumps({**message, "result": result.output}, allow_nan=False, default=to_json)
    except Exception as error:  # a result with the agent's own classes may raise anything
        problem = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS]
    else:
        if len(line) <= MAX_RESULT_CHARACTERS:
            return line
        problem = f"it has {len(line)} characters; at most {MAX_RESULT_CHARACTERS} are allowed"
    reason = (
        "The agent's result must be JSON (dict, list, str, number, bool, None), a pydantic model "
        f"or a dataclass: {problem}"
    )
    return json.dumps({**message, "outcome": Outcome.ERROR.value, "reason": reason})


def to_json(value: Any) -> Any:
    """Return a value of a result as JSON has it: a model or a dataclass as an object.

    Args:
        value: of a type that JSON lacks.

    Raises:
        TypeError: when it is of another type.
    """
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if callable(to_list := getattr(value, "tolist", None)):  # numpy's scalars and arrays
        return to_list()
    if isinstance(value, (datetime, date, time_of_day)):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (Decimal, PurePath, UUID)):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def parse_json(text: str) -> Any:
    """Parse a JSON text from an agent; NaN and infinities, which Python accepts, are refused.

    Raises:
        ValueError: when the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
