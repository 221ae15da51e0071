"""The online run: a scheduler that generates waves, trains on them, publishes and validates.

A killed run continues from its journal and the store: it repeats the unfinished update, and runs
only the rollouts that its waves still lack.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ltrain_train.loop.generation import Generation
from ltrain_train.loop.journal import Evaluated, Finished, Journal, Wave
from ltrain_train.loop.learners import Learners
from ltrain_train.loop.policy_run import PolicyRun
from ltrain_train.schedule import ModeTrial, StopRule
from ltrain_transforms.recipe import Train


@dataclass(slots=True)
class OnlineRun:
    """One online run with its services and its journal."""

    train: Train
    """The settings that all policies share."""
    journal: Journal
    policies: Sequence[PolicyRun]
    """The trained policies, which are updated one after the other."""
    learners: Learners
    generation: Generation
    on_wave: Callable[[Wave], None]
    notify: Callable[[str], None]
    """Called with sentences about the run."""

    _waves: dict[int, Future[Evaluated]] = field(default_factory=dict)
    """The training waves that were started, by number."""

    def run(self) -> Journal:
        """Validate, make the recipe's updates, and validate again.

        Raises:
            NothingToTrain: when a wave has no row to train on for a reason that would repeat in
                the next wave.
            RolloutsFailed: when every rollout of a training wave failed, or of a validation
                before any rollout of the run was ok.
            NotFinite: when several updates of a policy in a row were undone.
        """
        trial, began = ModeTrial(self.train.mode), time.monotonic()
        with self.generation:
            self._validate()
            self.learners.wait()
            while (number := self.journal.updates) < self.train.updates:
                if reason := self._stop_reason(time.monotonic() - began):
                    self.notify(f"The run ends after {number} updates: {reason}.")
                    break
                begins = time.monotonic()
                self._start_waves(number, number + trial.waves_ahead)
                self._waves.pop(number).result()
                self._update(number)
                if choice := trial.add(time.monotonic() - begins):
                    self.notify(choice)
                every = self.train.validate_every
                if every and (number + 1) % every == 0:
                    self._validate()
            self._validate()
        self.journal.add(Finished())
        for policy in self.policies:
            if sentence := policy.serve_best():
                self.notify(sentence)
        return self.journal

    def _stop_reason(self, seconds: float) -> str:
        """Return why the run ends before its last update; '' if it goes on.

        It goes on while the validation scores of one policy rise.
        """
        train = self.train
        rule = StopRule(patience=train.patience, tokens=train.max_tokens, minutes=train.max_minutes)
        tokens = sum(wave.tokens for wave in self.journal.waves)
        reasons = [
            rule.reason(_validation_scores(policy), tokens=tokens, minutes=seconds / 60)
            for policy in self.policies
        ]
        return reasons[0] if all(reasons) else ""

    def _start_waves(self, first: int, last: int) -> None:
        """Start the training waves from `first` to `last` that the run has and did not start."""
        for number in range(first, min(last, self.train.updates - 1) + 1):
            if number not in self._waves:
                self._waves[number] = self.generation.start("train", number)

    def _validate(self) -> None:
        number = self.journal.updates
        if self.generation.validation and ("val", number) not in self.journal.evaluated:
            self.generation.start("val", number).result()
            for wave in self.journal.waves_of("val", number):
                self.on_wave(wave)

    def _update(self, number: int) -> None:
        """Update every policy on the groups of a wave, but those that were before a kill."""
        for policy in self.policies:
            if policy.own.updates <= number:
                self.on_wave(policy.update(number))
                policy.check_undone()


def _validation_scores(policy: PolicyRun) -> list[float]:
    waves = policy.own.waves
    return [wave.score for wave in waves if wave.mode == "val" and wave.score is not None]
