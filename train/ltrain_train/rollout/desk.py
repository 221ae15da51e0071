"""The desk that opens and closes attempts: numbers, keys, rewards and the runner's spans.

An attempt's key is ended before its result is judged. What the reward function fails on is closed
last: as the agent's errors, or, where it failed on most results, as its own.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument import attributes
from ltrain_instrument.allow import Allow
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.client import (
    AWAY,
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
from ltrain_train.rollout.verdict import verdict
from ltrain_train.rollout.visit import Visit

SLACK = 30.0
"""Seconds that key and lease outlive the deadline."""
PAUSE = 0.5
"""Seconds between two looks for it."""
STOPPED = "the run was stopped"
NO_CALLS = CallCounts(llm_calls=0, spans=0, failures=0)

_logger = logging.getLogger("ltrain.rollouts")


@dataclass(frozen=True, slots=True)
class Flight:
    """An attempt on its way."""

    visit: Visit
    attempt: Attempt
    entry: Entry


@dataclass(frozen=True, slots=True)
class Unjudged:
    """An attempt with a result that the reward function failed on."""

    flight: Flight
    error: RewardFailed
    llm_calls: int


@dataclass(frozen=True, slots=True)
class Settled:
    """An attempt that has ended."""

    flight: Flight
    result: RolloutResult | None
    """None while nobody knows whose failure it is that its result has no reward."""
    again: Visit | None = None
    """The rollout's next try, where it is tried once more."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all attempts of a wave have."""

    policy: str
    sampling: dict[str, float]
    """Imposed on their calls."""
    deadline: float
    """Seconds each."""
    agent_sees: tuple[str, ...] = ("input",)
    """Keys of the task that an agent sees, beside id and domain."""
    allow: tuple[Allow, ...] = ()
    """What their calls may ask for although it makes them untrainable."""


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
        terms: Terms,
        store_keys: StoreKeys | None = None,
    ) -> None:
        self._store_keys = store_keys
        self._record, self._client = Record(provider), client
        self._judge, self._ledger = judge, ledger
        self._gateway, self._secret, self._terms = gateway, secret, terms
        self._lock = threading.Lock()
        self._waiting = threading.Lock()
        """Held by the one thread that waits for the gateway."""
        self._open: set[str] = set()
        self._unjudged: list[Unjudged] = []

    def open(self, visit: Visit) -> Flight:
        """Number the attempt, say so in a span, and sign its key."""
        assert visit.identity.rollout is not None
        number = self._ledger.begin(visit.identity.rollout)
        identity = replace(visit.identity, attempt=number)
        terms = self._terms
        entry = self._record.dispatch(identity, terms.deadline + SLACK)
        attempt = Attempt(
            identity=identity,
            task=visit.task.shown(terms.agent_sees),
            endpoint=self._endpoint(identity),
            traceparent=entry.traceparent,
            started=entry.started,
            deadline=terms.deadline,
            environ=self._environ(identity),
            alone=visit.alone,
        )
        with self._lock:
            self._open.add(attempt.id)
        return Flight(visit, attempt, entry)

    def settle(self, flight: Flight, ending: Ending) -> Settled | None:
        """End an attempt's key, judge and close it; None where that has been done before."""
        if not self._claim(flight):
            return None
        try:
            calls = self._close_key(flight)
        except (GatewayUnreachable, GatewayRefused) as error:
            calls, ending = NO_CALLS, Ending(Outcome.INFRA, str(error), died=ending.died)
        if self._store_keys is not None:
            self._store_keys.send_what_is_left(flight.attempt.identity)
        found = verdict(flight.attempt, ending, calls)
        try:
            rewards = self._rewards(flight, found)
        except RewardFailed as error:
            with self._lock:
                self._unjudged.append(Unjudged(flight, error, calls.llm_calls))
            return Settled(flight, None)
        result = self._close(flight, found.outcome, found.reason, rewards, calls.llm_calls)
        if found.outcome is not Outcome.INFRA or flight.visit.tries == ATTEMPTS:
            return Settled(flight, result)
        self._await_gateway()
        return Settled(flight, result, flight.visit.again(alone=found.died))

    def close_unjudged(self, judged: int) -> list[RolloutResult]:
        """Close what the reward function failed on, after `judged` results that it did not.

        Raises:
            RewardFailed: when it failed on most results; none of them counts.
        """
        with self._lock:
            unjudged, self._unjudged = self._unjudged, []
        most = len(unjudged) > judged
        outcome = Outcome.INFRA if most else Outcome.ERROR
        results = [self._close_without(each, outcome) for each in unjudged]
        if most:
            raise RewardFailed(f"{unjudged[0].error} It failed on {len(unjudged)} results.")
        return results

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
            self._close(flight, Outcome.CANCELLED, STOPPED, {}, calls)
        with self._lock:
            unjudged, self._unjudged = self._unjudged, []
        for each in unjudged:
            self._close(each.flight, Outcome.CANCELLED, STOPPED, {}, each.llm_calls)

    def _endpoint(self, identity: Identity) -> Endpoint:
        path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}/v1"
        key = self._key(identity, self._terms.deadline + SLACK)
        return Endpoint(self._gateway.rstrip("/") + path, key, self._terms.policy)

    def _key(self, identity: Identity, seconds: float) -> str:
        claims = RolloutClaims(
            identity=identity,
            policy=self._terms.policy,
            sampling=self._terms.sampling,
            allow=self._terms.allow,
            expires=time.time() + seconds,
        )
        return sign(self._secret, claims)

    def _environ(self, identity: Identity) -> dict[str, str | None]:
        if self._store_keys is None:
            return {}
        return self._store_keys.attempt(identity, self._terms.deadline + SLACK)

    def _claim(self, flight: Flight) -> bool:
        with self._lock:
            if flight.attempt.id not in self._open:
                return False
            self._open.remove(flight.attempt.id)
            return True

    def _rewards(self, flight: Flight, ending: Ending) -> dict[str, float]:
        if ending.outcome is not Outcome.OK or self._judge is None:
            return {}
        rewards = self._judge.rewards(flight.visit.task, ending.result)
        for name, value in rewards.items():
            self._record.evaluate(flight.entry, name, value)
        return rewards

    def _close_key(self, flight: Flight) -> CallCounts:
        # the agent's own may have expired while it waited here for its end
        identity = flight.attempt.identity
        return self._client.close_rollout(identity, self._key(identity, SLACK))

    def _close_without(self, unjudged: Unjudged, outcome: Outcome) -> RolloutResult:
        reason = f"{RewardFailed.__name__}: {unjudged.error}"
        return self._close(unjudged.flight, outcome, reason, {}, unjudged.llm_calls)

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
        """Wait until calls are answered, so that an outage takes one try, however long it is."""
        with self._waiting:
            if self._client.ready():
                return
            _logger.warning("ltrain: waiting for the gateway, at most %.0f s", AWAY)
            until = time.monotonic() + AWAY
            while not self._client.ready():
                if time.monotonic() > until:
                    raise GatewayUnreachable(
                        f"The gateway at {self._gateway} has not been ready for {AWAY:g} s. "
                        "Start it with `ltrain serve MODEL`, or name it with LTRAIN_GATEWAY."
                    )
                time.sleep(PAUSE)
