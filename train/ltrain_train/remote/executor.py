"""Runs attempts in the workers that take them from a gateway's lease queue.

* An attempt that the gateway no longer knows, because it was started again, ends as `infra`.
* An attempt that exceeded its time limit ends as `infra` if its worker does not end it.
"""

import queue
import threading
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from urllib.parse import urlsplit

from ltrain_collector.access import sign_admin
from ltrain_instrument.prompts import prompt_fields
from ltrain_train.errors import NoWorkers
from ltrain_train.gateway import GatewayRefused, GatewayUnreachable
from ltrain_train.leases import LeasedAttempt, LeaseResult, Offer, Results, ResultsRequest, Room
from ltrain_train.remote.lease_client import LeaseClient
from ltrain_train.workers import Attempt, AttemptResult, OnEnd, Outcome, parse_json

WAIT = 10.0
"""Seconds that a request for results waits."""
BATCH_DELAY = 0.01
"""Seconds in which more attempts or results join a request."""
CLOSE_TIMEOUT = 2.0
"""Seconds that a closed executor waits for each of its threads."""
OVERDUE_GRACE = 60.0
"""Seconds in which a worker ends an attempt that exceeded its time limit."""


class RemoteExecutor:
    """Offers attempts to the workers of one gateway; thread-safe."""

    def __init__(self, url: str, secret: str, *, on_end: OnEnd) -> None:
        """Begin to ask the gateway for results.

        Args:
            on_end: called once with the result of each attempt.
        """
        self._client = LeaseClient(url, lambda: sign_admin(secret))
        self._on_end, self._id = on_end, uuid.uuid4().hex
        self._changed = threading.Condition()
        self._room = 0
        self._in_flight: dict[str, Attempt] = {}
        self._offered: set[str] = set()
        self._overdue: dict[str, float] = {}
        """Monotonic seconds at which an attempt was first overdue, by execution id."""
        self._failure: Exception | None = None
        self._requests: queue.SimpleQueue[Attempt | set[str] | None] = queue.SimpleQueue()
        """Attempts to offer and execution ids that are overdue; None ends the thread."""
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), daemon=True)
            for run in (self._send_offers, self._receive_results)
        ]
        for thread in self._threads:
            thread.start()

    def wait_ready(self, timeout: float) -> None:
        """Wait until a worker takes attempts, at most `timeout` seconds.

        Raises:
            NoWorkers: when there is none.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._room, timeout)
            self._check()
            if not self._room:
                raise NoWorkers(
                    f"No worker takes attempts from {self._client.url} after {timeout:g} s. Start "
                    f"one with `LTRAIN_WORKER_KEY=KEY ltrain worker {self._client.url} --agent "
                    "module:function`; `ltrain worker-key` prints the key."
                )

    def free_slots(self, *, isolated: bool = False) -> int:
        """Return how many attempts the workers can start now."""
        with self._changed:
            self._check()
            return max(0, self._room - len(self._in_flight))

    def submit(self, attempt: Attempt) -> None:
        """Offer an attempt to the workers."""
        with self._changed:
            self._in_flight[attempt.id] = attempt
        self._requests.put(attempt)

    def time_out(self, attempts: Collection[str]) -> None:
        """Have the workers end these attempts."""
        now = time.monotonic()
        with self._changed:
            overdue = self._in_flight.keys() & set(attempts)
            new = overdue - self._overdue.keys()
            self._overdue |= dict.fromkeys(new, now)
            late = [name for name in overdue if now > self._overdue[name] + OVERDUE_GRACE]
        if new:
            self._requests.put(new)
        for name in late:
            reason = f"no worker ended it {OVERDUE_GRACE:g} s after its time limit"
            self._end(name, AttemptResult(Outcome.INFRA, reason))

    def close(self) -> None:
        """Withdraw every attempt; the workers end them."""
        self._client.stop_retries()
        self._requests.put(None)
        with suppress(GatewayUnreachable, GatewayRefused):
            self._client.send("/admin/leases/withdraw", self._offer(), Room)
        for thread in self._threads:
            thread.join(CLOSE_TIMEOUT)
        self._client.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _guard(self, run: Callable[[], None]) -> None:
        """Run a thread's loop; its error is raised by the next call of the runner."""
        try:
            run()
        except Exception as error:  # without the thread, the runner would wait for ever
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _send_offers(self) -> None:
        while (first := self._requests.get()) is not None:
            time.sleep(BATCH_DELAY)
            requests = [first]
            while not self._requests.empty():
                if (request := self._requests.get()) is None:
                    return
                requests.append(request)
            attempts = [each for each in requests if isinstance(each, Attempt)]
            overdue = [name for each in requests if isinstance(each, set) for name in each]
            offer = self._offer(attempts, overdue)
            if self._client.send_until_answered("/admin/leases/offer", offer, Room) is None:
                return
            with self._changed:
                self._offered |= {attempt.id for attempt in attempts} & self._in_flight.keys()

    def _offer(self, attempts: Collection[Attempt] = (), overdue: Collection[str] = ()) -> Offer:
        version = metadata.version("ltrain")
        offers = map_offers(attempts)
        return Offer(runner=self._id, version=version, attempts=offers, overdue=list(overdue))

    def _receive_results(self) -> None:
        received: list[str] = []
        while True:
            with self._changed:
                in_flight = list(self._offered)
            request = ResultsRequest(
                runner=self._id, in_flight=in_flight, received=received, wait=WAIT
            )
            answer = self._client.send_until_answered("/admin/leases/results", request, Results)
            if answer is None:
                return
            received = [result.id for result in answer.results]
            self._take(answer)
            time.sleep(BATCH_DELAY)

    def _take(self, answer: Results) -> None:
        with self._changed:
            self._room = answer.room
            self._changed.notify_all()
        for result in answer.results:
            self._end(result.id, _attempt_result(result))
        for name in answer.unknown:
            reason = "the gateway does not know it: it was started again meanwhile"
            self._end(name, AttemptResult(Outcome.INFRA, reason))

    def _end(self, name: str, result: AttemptResult) -> None:
        with self._changed:
            attempt = self._in_flight.pop(name, None)
            self._offered.discard(name)
            self._overdue.pop(name, None)
        if attempt is not None:
            self._on_end(attempt, result)


def map_offers(attempts: Collection[Attempt]) -> list[LeasedAttempt]:
    """Return attempts as workers get them; a worker adds its own URL of the gateway."""
    return [
        LeasedAttempt(
            id=attempt.id,
            identity=asdict(attempt.identity),
            task=dict(attempt.task),
            path=urlsplit(attempt.endpoint.base_url).path,
            key=attempt.endpoint.api_key,
            model=attempt.endpoint.model,
            traceparent=attempt.traceparent,
            prompts=prompt_fields(attempt.prompts),
            started=attempt.started,
            timeout=attempt.timeout,
            isolated=attempt.isolated,
        )
        for attempt in attempts
    ]


def _attempt_result(result: LeaseResult) -> AttemptResult:
    try:
        output = parse_json(result.output)
    except ValueError as error:
        return AttemptResult(
            Outcome.INFRA, f"its worker returned a result that is no JSON: {error}"
        )
    return AttemptResult(result.outcome, result.reason, output, result.died)
