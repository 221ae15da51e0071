"""One worker process and the two pipes to it.

The agent's code can use both pipes too: messages from it are untrusted, and it may never read what
is written, so a separate thread writes.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import Any

from ltrain_instrument.prompts import prompt_fields
from ltrain_train.processes import Child, Children, Command, JsonChild
from ltrain_train.workers.attempt import Attempt
from ltrain_train.workers.executor import KILL_GRACE, AgentProcesses, instrumented_command
from ltrain_train.workers.output import is_excess, watch_output
from ltrain_train.workers.results import FLUSH_TIMEOUT, parse_json

CANCEL_GRACE = 1.0
"""Seconds for a worker to cancel an overdue coroutine."""
ANSWER_GRACE = 5.0
"""Seconds for a worker of threads to answer that it cannot cancel one: a worker whose interpreter
is held by a thread, such as by a regular expression, does not answer."""
RESULT_GRACE = 4 * FLUSH_TIMEOUT
"""Seconds in which the result of an agent that has returned arrives: it waits for the flush of the
results before it and for its own."""


class WorkerProcess:
    """A worker process that runs the agent; `listen` passes on its messages."""

    def __init__(self, name: str, processes: AgentProcesses, children: Children) -> None:
        self.name, self.log = name, processes.logs / f"{name}.log"
        self.ready = False
        """Whether the worker accepts attempts."""
        self.cancels = False
        """Whether the worker can cancel an attempt, as it does with coroutines."""
        self.cancelled: dict[str, float] = {}
        """Monotonic seconds at which the worker was told to cancel an attempt, by execution id."""
        self.uncancellable: set[str] = set()
        """Attempts of which the worker answered that it cannot cancel them."""
        self.returned: dict[str, float] = {}
        """Monotonic seconds at which the agent returned the result of an attempt that is still
        waiting for its spans to be sent, by execution id."""
        self.in_flight: dict[str, Attempt] = {}
        """The attempts that run in the worker, by execution id."""
        self.shared_attempts: set[str] = set()
        """Execution ids of attempts during which another attempt ran in the worker."""
        self.overdue_attempts: list[Attempt] = []
        """Attempts that exceeded their time limit, for which the worker was stopped."""
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        """Requests that are not written yet; None ends the writing thread."""

        def start(*pipes: int) -> Child:
            options = zip(("--requests", "--results"), map(str, pipes), strict=True)
            argv = [str(processes.python), "-m", "ltrain_train.workers.worker", processes.agent]
            argv += [*chain(*options), "--concurrency", str(processes.concurrency)]
            command = Command(
                argv=instrumented_command(argv, processes.python), env=processes.environ,
                log=self.log, cwd=processes.folder, pass_fds=pipes, grace=KILL_GRACE,
            )  # fmt: skip
            return children.start(name, command)

        self._process = JsonChild(start)

    def listen(
        self,
        *,
        on_message: Callable[["WorkerProcess", dict[str, Any]], None],
        on_excess: Callable[["WorkerProcess"], None],
        on_exit: Callable[["WorkerProcess"], None],
    ) -> None:
        """Write the requests, and report each message, too much output and the worker's exit.

        Each of three threads does one of these; the same one reports messages and the exit.
        """

        def write() -> None:
            with suppress(BrokenPipeError):
                while (request := self._queue.get()) is not None:
                    self._process.send(request)
            self._process.end_requests()

        def read() -> None:
            for line in self._process.receive_all():
                if (message := _parse_message(line)) is not None:
                    on_message(self, message)
            self._process.end_answers()
            on_exit(self)

        def watch() -> None:
            before: dict[str, int] = {}  # bytes that were printed before each attempt
            for printed in watch_output(self._process.process, [self.log]):
                before = {name: before.get(name, printed) for name in list(self.in_flight)}
                if any(is_excess(printed - each, len(before)) for each in before.values()):
                    on_excess(self)

        for name, target in (("requests", write), ("results", read), ("output", watch)):
            threading.Thread(target=target, name=f"{self.name}-{name}", daemon=True).start()

    @property
    def is_isolated(self) -> bool:
        """Whether an attempt has the worker to itself."""
        return any(attempt.isolated for attempt in self.in_flight.values())

    def send(self, attempt: Attempt) -> None:
        """Queue an attempt for the worker and return at once; `on_exit` reports a dead worker."""
        if self.in_flight:
            self.shared_attempts |= {attempt.id, *self.in_flight}
        self.in_flight[attempt.id] = attempt
        self._queue.put(_request_message(attempt))

    def cancel(self, attempts: Collection[str]) -> set[str]:
        """Request these attempts' cancellation and return those that do not end by it.

        The last attempt of a worker of threads does not end by it.
        """
        now = time.monotonic()
        overdue = {
            name
            for name in self.in_flight.keys() & set(attempts)
            if now > self.returned.get(name, -math.inf) + RESULT_GRACE
        }
        if not self.cancels and len(overdue) == len(self.in_flight):
            return overdue
        grace = CANCEL_GRACE if self.cancels else ANSWER_GRACE
        for name in overdue - self.cancelled.keys():
            self.cancelled[name] = now
            self._queue.put({"cancel": name})
        return {
            name
            for name in overdue
            if name in self.uncancellable or now > self.cancelled[name] + grace
        }

    def stop(self) -> None:
        """Request the end of the worker and everything it started, and return at once."""
        self._queue.put(None)
        self._process.process.request_stop()

    def tail(self) -> str:
        """Return the last lines of the worker's log."""
        return self._process.process.tail()


def _parse_message(line: bytes) -> dict[str, Any] | None:
    """Parse a message of a worker; return None for a line that is not a message."""
    try:
        message = parse_json(line.decode(errors="replace"))
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _request_message(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "identity": asdict(attempt.identity),
        "task": dict(attempt.task),
        "endpoint": asdict(attempt.endpoint),
        "traceparent": attempt.traceparent,
        "timeout": attempt.timeout,
        "prompts": prompt_fields(attempt.prompts),
    }
