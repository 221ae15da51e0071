"""The desk that opens and closes attempts: numbers, keys, rewards and the runner's spans."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument import attributes
from ltrain_instrument.identity import Identity, Mode, rollout_id
from ltrain_train.gateway.client import (
    CallCounts,
    GatewayClient,
    GatewayRefused,
    GatewayUnreachable,
)
from ltrain_train.gateway.keys import RolloutClaims, sign
from ltrain_train.rollout.attempt import (
    ATTEMPTS,
    Attempt,
    Ending,
    Endpoint,
    Outcome,
    RolloutResult,
)
from ltrain_train.rollout.judge import Judge, RewardFailed
from ltrain_train.rollout.ledger import Ledger
from ltrain_train.rollout.record import Entry, Record
from ltrain_train.rollout.store_keys import StoreKeys
from ltrain_train.rollout.tasks import Task

SLACK = 30.0
"""Seconds that key and lease outlive the deadline."""
AWAY = 600.0
"""Seconds that a gateway may be away before the run ends for it: a killed one starts vLLM again."""
PAUSE = 0.5
"""Seconds between two looks for it."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A rollout to be made: identity without attempt, task, and how often it was tried."""

    identity: Identity
    task: Task
    tries: int = 1

    def again(self) -> "Visit":
        """Give the visit for its next try."""
        return replace(self, tries=self.tries + 1)


@dataclass(frozen=True, slots=True)
class Flight:
    """An attempt on its way."""

    visit: Visit
    attempt: Attempt
    entry: Entry


@dataclass(frozen=True, slots=True)
class Settled:
    """An attempt that is closed."""

    flight: Flight
    result: RolloutResult
    again: bool
    """Whether the rollout is to be tried once more."""


def visits(
    run: str, mode: Mode, wave: int, tasks: Sequence[Task], per_task: int
) -> Iterator[Visit]:
    """Name every rollout of a wave: task after task, so that a group runs together."""
    for task in tasks:
        for sample in range(per_task):
            identity = Identity(
                run=run,
                task=task.id,
                domain=task.domain or None,
                wave=wave,
                sample=sample,
                rollout=rollout_id(run, mode, wave, task.id, sample),
                mode=mode,
            )
            yield Visit(identity, task)


class Desk:
    """Opens, settles and cancels the attempts of one wave; `settle` may run in several threads."""

    def __init__(
        self,
        *,
        provider: TracerProvider,
        client: GatewayClient,
        judge: Judge | None,
        ledger: Ledger,
        gateway: str,
        secret: str,
        policy: str,
        sampling: dict[str, float],
        deadline: float,
        store_keys: StoreKeys | None = None,
    ) -> None:
        self._store_keys = store_keys
        self._record, self._client = Record(provider), client
        self._judge, self._ledger = judge, ledger
        self._gateway, self._secret, self._policy = gateway, secret, policy
        self._sampling, self._deadline = sampling, deadline
        self._lock = threading.Lock()
        self._open: set[str] = set()

    def open(self, visit: Visit) -> Flight:
        """Number the attempt, say so in a span, and sign its key."""
        assert visit.identity.rollout is not None
        number = self._ledger.begin(visit.identity.rollout)
        identity = replace(visit.identity, attempt=number)
        entry = self._record.dispatch(identity, self._deadline + SLACK)
        attempt = Attempt(
            identity=identity,
            task=visit.task,
            endpoint=self._endpoint(identity),
            traceparent=entry.traceparent,
            started=entry.started,
            deadline=self._deadline,
            environ=self._environ(identity),
        )
        with self._lock:
            self._open.add(attempt.id)
        return Flight(visit, attempt, entry)

    def settle(self, flight: Flight, ending: Ending) -> Settled | None:
        """Judge and close an attempt; None where it has been closed before."""
        if not self._claim(flight):
            return None
        outcome, reason, rewards = self._judged(flight, ending)
        unjudged = outcome is Outcome.INFRA and ending.outcome is Outcome.OK
        try:
            calls = self._close_key(flight)
        except (GatewayUnreachable, GatewayRefused) as error:
            outcome, reason, rewards, unjudged = Outcome.INFRA, str(error), {}, False
            calls = CallCounts(llm_calls=0, spans=0, failures=0)
        if outcome in (Outcome.ERROR, Outcome.TIMEOUT) and calls.failures:
            outcome, reason = Outcome.INFRA, f"{calls.failures} calls failed upstream: {reason}"
        result = self._close(flight, outcome, reason, rewards, calls.llm_calls)
        again = outcome is Outcome.INFRA and not unjudged and flight.visit.tries < ATTEMPTS
        if again:
            self._await_gateway()
        return Settled(flight, result, again)

    def cancel(self, flights: Sequence[Flight]) -> None:
        """Close what is open as `cancelled`; a gateway that is away is asked once."""
        answers = True
        for flight in flights:
            if not self._claim(flight):
                continue
            calls = 0
            if answers:
                try:
                    calls = self._close_key(flight).llm_calls
                except (GatewayUnreachable, GatewayRefused):
                    answers = False
            self._close(flight, Outcome.CANCELLED, "the run was stopped", {}, calls)

    def _endpoint(self, identity: Identity) -> Endpoint:
        claims = RolloutClaims(
            identity=identity,
            policy=self._policy,
            sampling=self._sampling,
            expires=time.time() + self._deadline + SLACK,
        )
        path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}/v1"
        return Endpoint(self._gateway.rstrip("/") + path, sign(self._secret, claims), self._policy)

    def _environ(self, identity: Identity) -> dict[str, str | None]:
        if self._store_keys is None:
            return {}
        return self._store_keys.environ(identity, self._deadline + SLACK)

    def _claim(self, flight: Flight) -> bool:
        with self._lock:
            if flight.attempt.id not in self._open:
                return False
            self._open.remove(flight.attempt.id)
            return True

    def _judged(self, flight: Flight, ending: Ending) -> tuple[Outcome, str, dict[str, float]]:
        if ending.outcome is not Outcome.OK or self._judge is None:
            return ending.outcome, ending.reason, {}
        try:
            rewards = self._judge.rewards(flight.visit.task, ending.result)
        except RewardFailed as error:
            return Outcome.INFRA, f"{RewardFailed.__name__}: {error}", {}
        for name, value in rewards.items():
            self._record.evaluate(flight.entry, name, value)
        return Outcome.OK, "", rewards

    def _close_key(self, flight: Flight) -> CallCounts:
        identity, key = flight.attempt.identity, flight.attempt.endpoint.api_key
        return self._client.close_rollout(identity, key)

    def _close(
        self, flight: Flight, outcome: Outcome, reason: str, rewards: dict[str, float], calls: int
    ) -> RolloutResult:
        identity = flight.attempt.identity
        digests = {
            attributes.TASKS_DIGEST: flight.visit.task.file,
            attributes.REWARD_DIGEST: self._judge.digest if self._judge else "",
        }
        seconds = self._record.close(
            flight.entry,
            outcome,
            reason=reason,
            llm_calls=calls,
            digests={name: value for name, value in digests.items() if value},
        )
        self._ledger.end(str(identity.rollout), identity.attempt or 0, outcome)
        return RolloutResult(
            identity=identity,
            outcome=outcome,
            reason=reason,
            rewards=rewards,
            seconds=seconds,
            llm_calls=calls,
        )

    def _await_gateway(self) -> None:
        until = time.monotonic() + AWAY
        while not self._client.health():
            if time.monotonic() > until:
                raise GatewayUnreachable(
                    f"The gateway at {self._gateway} has not answered for {AWAY:g} s. "
                    "Start it with `ltrain serve MODEL`, or name it with LTRAIN_GATEWAY."
                )
            time.sleep(PAUSE)
