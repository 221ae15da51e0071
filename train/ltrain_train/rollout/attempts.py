"""Opens and closes the attempts of a wave: their numbers, keys, rewards and spans.

An attempt's key is revoked before its result is scored. Attempts that the reward function failed on
are closed last: as errors of the agent, or, if the function failed on most results, as `infra`.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from ltrain_collector.access import AttemptKey
from ltrain_instrument import attributes
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_instrument.prompts import Prompt
from ltrain_instrument.quantity import quantity
from ltrain_train.attempt_services import NO_LEASE, Lease
from ltrain_train.gateway import CallCounts, GatewayClient, GatewayRefused, GatewayUnreachable
from ltrain_train.rollout.attempt_log import AttemptLog
from ltrain_train.rollout.executor import RunnerEnvironment
from ltrain_train.rollout.planned_rollout import PlannedRollout
from ltrain_train.rollout.program import AgentProgram
from ltrain_train.rollout.rewards import RewardFailed
from ltrain_train.rollout.runner_spans import AttemptSpans, ClosingSpan, SpanWriter
from ltrain_train.rollout.scorer import Scorer
from ltrain_train.rollout.store_keys import StoreKeys
from ltrain_train.sandboxes import Changes
from ltrain_train.workers import (
    COUNTED_OUTCOMES,
    MAX_TRIES,
    Attempt,
    AttemptResult,
    Endpoint,
    Outcome,
    RolloutResult,
)

CLOSE_GRACE = 30.0
"""Maximum seconds to close an ended attempt, by which its keys and lease outlive its wall limit."""
STOPPED = AttemptResult(Outcome.CANCELLED, "the run was stopped")
NO_CALLS = CallCounts(llm_calls=0, spans=0, failures=0)

_logger = logging.getLogger("ltrain.rollouts")


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An open attempt, with its plan, its spans and its services."""

    rollout: PlannedRollout
    attempt: Attempt
    spans: AttemptSpans
    lease: Lease = NO_LEASE


@dataclass(frozen=True, slots=True)
class UnscoredAttempt:
    """An attempt whose result the reward function failed on."""

    running: RunningAttempt
    output: Any
    """The agent's result."""
    error: RewardFailed
    calls: CallCounts


@dataclass(frozen=True, slots=True)
class ClosedAttempt:
    """An attempt that has ended, and the rollout's next try."""

    running: RunningAttempt
    result: RolloutResult | None
    """None until it is known whether the agent or the reward function is to blame for a missing
    reward."""
    next_try: PlannedRollout | None = None
    """The plan of the rollout's next try; None if the rollout has ended."""
    late: bool = False
    """Whether the model server answered too late for the attempt."""


@dataclass(frozen=True, slots=True)
class WaveTerms:
    """The sampling and the prompts of one wave."""

    sampling: dict[str, float]
    """Sampling parameters that the gateway imposes on the agent's calls."""
    policy_sampling: dict[str, dict[str, float]]
    """The sampling of calls of these policies, in place of `sampling`."""
    prompts: Mapping[str, Prompt]
    """The prompts that the agent may read, by name."""


class Attempts:
    """Opens, closes and cancels the attempts of one wave; `close` may run in several threads."""

    def __init__(
        self,
        program: AgentProgram,
        environment: RunnerEnvironment,
        terms: WaveTerms,
        log: AttemptLog,
        *,
        provider: TracerProvider,
        client: GatewayClient,
        scorer: Scorer,
        store_keys: StoreKeys | None = None,
    ) -> None:
        self._program, self._environment = program, environment
        self._terms, self._log = terms, log
        self._span_writer, self._client = SpanWriter(provider), client
        self._scorer, self._store_keys = scorer, store_keys
        self._key_seconds = program.wall_seconds + CLOSE_GRACE
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._unscored: list[UnscoredAttempt] = []

    def open(self, rollout: PlannedRollout, lease: Lease = NO_LEASE) -> RunningAttempt:
        """Number an attempt, write its dispatch span, and sign its key.

        Args:
            lease: the services of the attempt, which `close` and `cancel` release.
        """
        assert rollout.identity.rollout is not None
        number = self._log.begin(rollout.identity.rollout)
        identity = replace(rollout.identity, attempt=number)
        prompts = self._terms.prompts
        key = self._sign_key(identity, self._key_seconds)
        spans = self._span_writer.write_dispatch(
            identity, self._key_seconds, rollout.task.json_input, prompts
        )
        attempt = Attempt(
            identity=identity,
            task=rollout.task.visible_fields(self._program.agent_sees),
            endpoint=self._endpoint(identity, key, lease.addresses),
            traceparent=spans.traceparent,
            started=spans.started,
            timeout=self._program.timeout,
            prompts=prompts,
            environ=self._store_keys.attempt_environment(identity, key) if self._store_keys else {},
            isolated=rollout.isolated,
        )
        with self._lock:
            self._open.add(attempt.id)
        return RunningAttempt(rollout, attempt, spans, lease)

    def close(self, running: RunningAttempt, result: AttemptResult) -> ClosedAttempt | None:
        """Revoke an attempt's key, score its result and write its closing span.

        Returns:
            the closed attempt; None if it was closed before.
        """
        with result.kept():
            return self._close(running, result)

    def _close(self, running: RunningAttempt, result: AttemptResult) -> ClosedAttempt | None:
        if not self._remove_open(running):
            return None
        changes, seconds = result.changes, running.attempt.elapsed
        try:
            calls = self._close_key(running)
        except (GatewayUnreachable, GatewayRefused) as error:
            calls, result = NO_CALLS, AttemptResult(Outcome.INFRA, str(error), died=result.died)
        if self._store_keys is not None:
            self._store_keys.send_leftovers(running.attempt.identity)
        result = apply_outage(result, calls, seconds)
        result = apply_service_fault(running, result)
        try:
            rewards = self._score(running, result, changes)
        except RewardFailed as error:
            with self._lock:
                self._unscored.append(UnscoredAttempt(running, result.output, error, calls))
            return ClosedAttempt(running, None)
        finally:
            running.lease.release()
        closed = self._write_end(running, result, rewards, calls)
        ended = ClosedAttempt(running, closed, late=result.late)
        if result.outcome is not Outcome.INFRA or running.rollout.tries == MAX_TRIES:
            return ended
        return replace(ended, next_try=running.rollout.next_try(isolated=result.died))

    def close_unscored(self, scored: int) -> list[RolloutResult]:
        """Close the attempts that the reward failed on, after it scored `scored` others."""
        with self._lock:
            unscored, self._unscored = self._unscored, []
        most_failed = len(unscored) > scored
        outcome = Outcome.INFRA if most_failed else Outcome.ERROR
        results = [self._write_unscored(each, outcome) for each in unscored]
        if most_failed:
            raise RewardFailed(
                f"{unscored[0].error} It failed on {quantity(len(unscored), 'result')}."
            )
        return results

    def cancel(self, attempts: Sequence[RunningAttempt]) -> None:
        """Close the open attempts as `cancelled`; a gateway that does not answer is tried once."""
        gateway_answers = True
        for running in attempts:
            if not self._remove_open(running):
                continue
            running.lease.release()
            calls = NO_CALLS
            if gateway_answers:
                try:
                    calls = self._close_key(running)
                except (GatewayUnreachable, GatewayRefused):
                    gateway_answers = False
            self._write_end(running, STOPPED, {}, calls)
        with self._lock:
            unscored, self._unscored = self._unscored, []
        for each in unscored:
            self._write_end(each.running, STOPPED, {}, each.calls)

    def _endpoint(self, identity: Identity, key: str, services: Mapping[str, str]) -> Endpoint:
        path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}/v1"
        url = self._environment.gateway.rstrip("/") + path
        return Endpoint(url, key, self._environment.policy, dict(services))

    def _sign_key(self, identity: Identity, seconds: float) -> str:
        key = AttemptKey(
            identity=identity,
            rewards=True,
            policy=self._environment.policy,
            sampling=self._terms.sampling,
            policy_sampling=self._terms.policy_sampling,
            allow=tuple(self._program.allow),
            constrained=self._program.constrained,
            pin_version=self._program.pin_version,
            max_calls=self._program.max_calls,
            max_tokens=self._program.max_tokens or 0,
            expires=Deadline.after(seconds),
        )
        return key.sign(self._environment.secret)

    def _remove_open(self, running: RunningAttempt) -> bool:
        with self._lock:
            if running.attempt.id not in self._open:
                return False
            self._open.remove(running.attempt.id)
            return True

    def _score(
        self, running: RunningAttempt, result: AttemptResult, changes: Changes | None
    ) -> dict[str, float]:
        if result.outcome is not Outcome.OK:
            return {}
        start_call = partial(self._span_writer.start_call, running.spans)
        task, services = running.rollout.task, running.lease.addresses
        scores = self._scorer.score(task, result.output, start_call, services, changes)
        for name, score in scores.items():
            self._span_writer.write_evaluation(running.spans, name, score.value, score.evidence)
        return {name: score.value for name, score in scores.items()}

    def _close_key(self, running: RunningAttempt) -> CallCounts:
        identity = running.attempt.identity
        # the attempt's own key may have expired while it waited to be closed
        return self._client.close_attempt(identity, self._sign_key(identity, CLOSE_GRACE))

    def _write_unscored(self, unscored: UnscoredAttempt, outcome: Outcome) -> RolloutResult:
        reason = f"{RewardFailed.__name__}: {unscored.error}"
        result = AttemptResult(outcome, reason, unscored.output)
        return self._write_end(unscored.running, result, {}, unscored.calls)

    def _write_end(
        self,
        running: RunningAttempt,
        result: AttemptResult,
        rewards: dict[str, float],
        calls: CallCounts,
    ) -> RolloutResult:
        identity, task = running.attempt.identity, running.rollout.task
        digests = {
            attributes.TASKS_DIGEST: task.file_digest,
            attributes.REWARD_DIGEST: self._scorer.digest,
        }
        contents: dict[str, Any] = {attributes.TASK_FIELDS: task.further_fields}
        if result.outcome is Outcome.OK or result.output is not None:
            contents[attributes.RESULT] = result.output
        closed = RolloutResult(
            identity=identity,
            outcome=result.outcome,
            reason=result.reason,
            rewards=rewards,
            seconds=running.attempt.elapsed,
            llm_calls=calls.llm_calls,
            tokens=calls.tokens,
            spans=running.spans.spans + calls.spans,
        )
        closing = ClosingSpan.from_attempt(
            running.spans,
            result.outcome,
            reason=result.reason,
            llm_calls=calls.llm_calls,
            digests={name: value for name, value in digests.items() if value},
        )
        with self._log.end(closed, closing):
            self._span_writer.write_end(closing, contents)
        return closed


def apply_service_fault(running: RunningAttempt, result: AttemptResult) -> AttemptResult:
    """Return the attempt's result, changed to `infra` if one of its services ended meanwhile.

    The rollout is tried again alone. If a service of its own ends then, too, that is the agent's
    error: otherwise an agent could end its service to be tried again.
    """
    fault = running.lease.find_fault()
    if fault is None or result.outcome not in COUNTED_OUTCOMES:
        return result
    reason = f"{fault.reason}: {result.reason}" if result.reason else fault.reason
    if running.attempt.isolated and not fault.shared:
        return AttemptResult(Outcome.ERROR, reason)
    return AttemptResult(Outcome.INFRA, reason, died=True)


def apply_outage(result: AttemptResult, calls: CallCounts, seconds: float) -> AttemptResult:
    """Return the result of an attempt of `seconds`, or `infra` if an outage may have caused it.

    A call that the agent left without an answer is an outage, too: its client's timeout ended it.
    A timeout of the agent's own seconds is not its consequence, as calls do not count in them.
    """
    if result.outcome not in COUNTED_OUTCOMES:
        return result
    reason, is_late = _outage_reason(calls, seconds), False
    if not reason and calls.given_up and result.outcome is not Outcome.TIMEOUT:
        is_late = True
        reason = (
            f"it gave up {quantity(calls.given_up, 'model call')} before the answer: the model "
            "server is too slow for the timeout of the agent's client"
        )
    if not reason:
        return result
    reason = f"{reason}: {result.reason}" if result.reason else reason
    return AttemptResult(Outcome.INFRA, reason, late=is_late)


def _outage_reason(calls: CallCounts, seconds: float) -> str:
    if calls.uptime < seconds:
        return "the gateway was started again meanwhile"
    if calls.failures:
        return f"an outage left {quantity(calls.failures, 'call')} unanswered"
    return ""
