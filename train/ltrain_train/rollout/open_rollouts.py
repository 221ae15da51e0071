"""The rollouts of a runner that have not ended, those that were carried over included.

* A rollout keeps its planned wave, and the settings of that wave.
* A rollout that has not ended is not added again, so none runs twice.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ltrain_instrument.identity import Identity
from ltrain_train.attempt_services import Lease
from ltrain_train.rollout.attempts import Attempts, ClosedAttempt, RunningAttempt
from ltrain_train.rollout.planned_rollout import PlannedRollout
from ltrain_train.schedule import EarlyStop, GroupQueue
from ltrain_train.workers import Attempt, Outcome, RolloutResult

Group = tuple[str | None, int | None, str | None]
"""Mode, wave and task."""


@dataclass(slots=True)
class _PlannedWave:
    """The attempts of rollouts that were planned together."""

    attempts: Attempts
    scored: int
    """Rollouts with a reward."""


class OpenRollouts:
    """Rollouts that wait, run or are being closed; used by one thread."""

    def __init__(self) -> None:
        """Begin without rollouts."""
        self.waiting = GroupQueue[PlannedRollout](
            (), group=lambda each: _group(each.identity), isolated=lambda each: each.isolated
        )
        self.in_flight: dict[str, RunningAttempt] = {}
        """The attempts that have not been closed, by execution id."""
        self._waves: dict[str, tuple[Identity, _PlannedWave]] = {}
        """Each rollout that has not ended, with its wave, by rollout id."""
        self._ended: list[_PlannedWave] = []
        """The waves of the rollouts that have ended and may lack their results."""
        self._finished: list[Identity] = []
        """The rollouts that were added since the last wave and had ended before."""

    def __len__(self) -> int:
        return len(self._waves)

    @property
    def groups(self) -> set[Group]:
        """The groups that have a rollout which has not ended."""
        return {_group(identity) for identity, _ in self._waves.values()}

    def add(
        self, attempts: Attempts, planned: Sequence[PlannedRollout], finished: Collection[str]
    ) -> None:
        """Add planned rollouts; those in `finished` have ended before."""
        wave = _PlannedWave(attempts, len(finished))
        for rollout in planned:
            if rollout.identity.rollout in finished:
                self._finished.append(rollout.identity)
            elif str(rollout.identity.rollout) not in self._waves:
                self._waves[str(rollout.identity.rollout)] = rollout.identity, wave
                self.waiting.push(rollout)

    def begin_wave(self, enough_groups: int | None) -> EarlyStop:
        """Return when a wave of the open rollouts ends."""
        stop = EarlyStop(enough_groups)
        finished, self._finished = self._finished, []
        for identity in [*(identity for identity, _ in self._waves.values()), *finished]:
            stop.add(_group(identity))
        for identity in finished:
            stop.end(_group(identity))
        return stop

    def attempts(self, rollout: PlannedRollout) -> Attempts:
        """Return the attempts of an open rollout's planned wave."""
        return self._wave(rollout).attempts

    def start(self, rollout: PlannedRollout, lease: Lease) -> Attempt:
        """Open an attempt at a rollout that has left `waiting`, with the services of `lease`."""
        running = self.attempts(rollout).open(rollout, lease)
        self.in_flight[running.attempt.id] = running
        return running.attempt

    def end(self, closed: ClosedAttempt) -> Group | None:
        """Remove a closed attempt; return the group of a rollout that ended with it."""
        self.in_flight.pop(closed.running.attempt.id, None)
        name = str(closed.running.rollout.identity.rollout)
        if name not in self._waves:
            return None  # it was cancelled before
        if closed.next_try is not None:
            self.waiting.push(closed.next_try)
            return None
        identity, wave = self._waves.pop(name)
        wave.scored += closed.result is not None and closed.result.outcome is Outcome.OK
        self._ended.append(wave)
        return _group(identity)

    def close_unscored(self) -> list[RolloutResult]:
        """Close the ended rollouts that the reward function failed on, and return their results."""
        ended, self._ended = self._ended, []
        waves = {id(wave): wave for wave in ended}.values()
        return [result for wave in waves for result in wave.attempts.close_unscored(wave.scored)]

    def cancel(self) -> list[Identity]:
        """Cancel every open rollout, and return the identities of the attempts in flight."""
        waves = {id(wave): wave for wave in [*self._ended, *(w for _, w in self._waves.values())]}
        in_flight = list(self.in_flight.values())
        for wave in waves.values():
            wave.attempts.cancel(in_flight)
        while self.waiting.pop() or self.waiting.pop(isolated=True):
            pass
        self.in_flight.clear()
        self._waves.clear()
        self._ended.clear()
        return [running.attempt.identity for running in in_flight]

    def _wave(self, rollout: PlannedRollout) -> _PlannedWave:
        return self._waves[str(rollout.identity.rollout)][1]


def _group(identity: Identity) -> Group:
    return identity.mode, identity.wave, identity.task
