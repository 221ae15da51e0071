"""`ltrain worker`: takes attempts from a gateway, runs the agent here, and returns the results.

* A result is sent only after the spans of its attempt were flushed.
* While the gateway is away the agents go on; results are sent until the gateway answers.
* Spans that a killed agent left on disk are sent before its result, and at the start and the end.
* When the worker is stopped it returns its leases at once, so that others take the rollouts.
"""

import json
import logging
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ltrain_instrument.delivery import send_leftover_spans
from ltrain_instrument.identity import Identity
from ltrain_instrument.prompts import read_prompts
from ltrain_instrument.settings import SPOOL, secret_variables
from ltrain_train.gateway import GatewayRefused, GatewayUnreachable
from ltrain_train.leases import (
    MAX_SLOTS,
    Finished,
    Heartbeat,
    Leased,
    LeasedAttempt,
    LeaseResult,
    Refusals,
    Take,
    WorkerOrders,
)
from ltrain_train.remote.lease_client import LeaseClient
from ltrain_train.workers import (
    AgentProcesses,
    Attempt,
    AttemptResult,
    Endpoint,
    Executor,
    Outcome,
    agent_environment,
    open_executor,
)

HEARTBEAT = 2.0
"""Seconds between two reports of what runs."""
TAKE_WAIT = 10.0
"""Seconds that a request for attempts waits."""
BATCH_DELAY = 0.01
"""Seconds in which more free slots or results join a request."""
BATCH_CHARACTERS = 16 << 20
"""Characters of results after which no further result joins a request."""
LEFTOVER_TIMEOUT = 5.0
"""Maximum seconds to send the spans that killed agents left; the rest stays on disk."""
START_TIMEOUT = 120.0
"""Maximum seconds to import the agent."""

_logger = logging.getLogger("ltrain.rollouts")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of `ltrain worker`."""

    url: str
    key: str
    agent: str
    """`module:function` or a command."""
    folder: Path
    home: Path
    workers: int
    concurrency: int


def run_worker(options: WorkerOptions, log: Callable[[str], None]) -> None:
    """Run attempts until SIGTERM or ctrl-C.

    Raises:
        LtrainError: when the agent cannot be started, or the gateway refuses the worker.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    worker = LeaseWorker(options)
    try:
        worker.run(log)
    except KeyboardInterrupt:
        log("stopping; the rollouts that run here are tried elsewhere")
    finally:
        worker.close()


class LeaseWorker:
    """Owns the agent's processes on this machine."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options, self._id = options, uuid.uuid4().hex
        self._client = LeaseClient(options.url, lambda: options.key)
        self._lock = threading.Lock()
        self._freed = threading.Event()
        self._waiting: list[Attempt] = []
        """Taken attempts that need a process of their own, which is not free yet."""
        self._held: set[str] = set()
        """Execution ids of taken attempts whose results the gateway does not have."""
        self._results: queue.SimpleQueue[LeaseResult] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._stopped = threading.Event()
        self._executor = self._open_executor()

    def run(self, log: Callable[[str], None]) -> None:
        """Take attempts and run them, without end."""
        self._executor.wait_ready(START_TIMEOUT)
        self._send_leftovers()  # an earlier worker may have been killed with its agents
        greeting = Heartbeat(worker=self._id, running=[])  # checks the address and the key
        self._client.send_until_answered("/worker/heartbeat", greeting, WorkerOrders)
        for run in (self._send_results, self._send_heartbeats):
            threading.Thread(target=self._guard, args=(run,), daemon=True).start()
        log(f"worker ready; it takes attempts from {self._client.url}")
        while True:
            if self._failure is not None:
                raise self._failure
            free = self._start_waiting()
            if not free:
                self._freed.wait(HEARTBEAT)
                self._freed.clear()
                continue
            self._take(free)
            time.sleep(BATCH_DELAY)

    def close(self) -> None:
        """Return the leases and end the agents."""
        self._stopped.set()
        self._client.stop_retries()
        with suppress(GatewayUnreachable, GatewayRefused):
            beat = Heartbeat(worker=self._id, running=[], leaves=True)
            self._client.send("/worker/heartbeat", beat, WorkerOrders)
        self._executor.close()
        self._client.close()
        self._send_leftovers()

    def _take(self, free: int) -> None:
        with self._lock:
            held = list(self._held)
        take = Take(
            worker=self._id,
            version=metadata.version("ltrain"),
            slots=min(len(held) + free, MAX_SLOTS),
            free=free,
            held=held,
            wait=TAKE_WAIT,
        )
        leased = self._client.send_until_answered("/worker/take", take, Leased)
        for message in leased.attempts if leased else ():
            attempt = self._attempt(message)
            with self._lock:
                self._held.add(attempt.id)
                self._waiting.append(attempt)

    def _start_waiting(self) -> int:
        """Start the attempts that can start, and return how many more can be taken."""
        with self._lock:
            while self._waiting and self._executor.free_slots(isolated=self._waiting[0].isolated):
                self._executor.submit(self._waiting.pop(0))
            return 0 if self._waiting else self._executor.free_slots()

    def _on_end(self, attempt: Attempt, result: AttemptResult) -> None:
        self._results.put(
            LeaseResult(
                id=attempt.id,
                outcome=result.outcome,
                reason=result.reason,
                output=json.dumps(result.output),
                died=result.died,
            )
        )
        self._freed.set()

    def _send_results(self) -> None:
        while True:
            results = self._next_results()
            if any(result.outcome is not Outcome.OK for result in results):
                self._send_leftovers()
            finished = Finished(worker=self._id, results=results)
            answer = self._client.send_until_answered("/worker/results", finished, Refusals)
            if answer is None:
                return
            with self._lock:
                self._held -= {result.id for result in results}
            for name in answer.refused:
                _logger.warning("ltrain: the lease of attempt %s had ended: no result", name)

    def _next_results(self) -> list[LeaseResult]:
        results = [self._results.get()]
        characters = len(results[0].output)
        time.sleep(BATCH_DELAY)
        while not self._results.empty() and characters < BATCH_CHARACTERS:
            results.append(self._results.get())
            characters += len(results[-1].output)
        return results

    def _send_leftovers(self) -> None:
        send_leftover_spans(self._options.home / SPOOL, timeout=LEFTOVER_TIMEOUT)

    def _send_heartbeats(self) -> None:
        while not self._stopped.wait(HEARTBEAT):
            with self._lock:
                running = list(self._held)
            beat = Heartbeat(worker=self._id, running=running)
            orders = self._client.send_until_answered("/worker/heartbeat", beat, WorkerOrders)
            if orders is None:
                return
            self._end({*orders.overdue, *orders.lost})

    def _end(self, attempts: set[str]) -> None:
        with self._lock:
            for attempt in [each for each in self._waiting if each.id in attempts]:
                self._waiting.remove(attempt)
                self._on_end(attempt, AttemptResult(Outcome.INFRA, "it had not been started"))
        if attempts:
            self._executor.time_out(attempts)

    def _guard(self, run: Callable[[], None]) -> None:
        """Run a thread's loop; `run` raises its error."""
        try:
            run()
        except Exception as error:  # without the thread, results or leases would be lost silently
            self._failure = error
            self._freed.set()

    def _attempt(self, message: LeasedAttempt) -> Attempt:
        return Attempt(
            identity=Identity(**message.identity),
            task=message.task,
            endpoint=Endpoint(self._client.url + message.path, message.key, message.model),
            traceparent=message.traceparent,
            prompts=read_prompts(message.prompts),
            started=message.started,
            timeout=message.timeout,
            isolated=message.isolated,
        )

    def _open_executor(self) -> Executor:
        options = self._options
        processes = AgentProcesses(
            agent=options.agent, folder=options.folder, workers=options.workers,
            environ=agent_environment(options.home, dict.fromkeys(secret_variables())),
            logs=options.home / "logs" / "rollouts", concurrency=options.concurrency,
        )  # fmt: skip
        return open_executor(processes, self._on_end)
