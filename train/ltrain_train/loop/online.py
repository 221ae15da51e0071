"""The online run: a scheduler that generates waves, trains on them, publishes and validates.

A killed run continues from its journal and the store: it repeats the unfinished update, and runs
only the rollouts that its waves still lack.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ltrain_instrument.identity import Mode
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import AlarmRaised
from ltrain_train.loop.generation import Generation
from ltrain_train.loop.policy_run import PolicyRun
from ltrain_train.runs import Evaluated, Finished, Journal, Stopped, Wave, new_alarms
from ltrain_train.schedule import ModeTrial, StopRule
from ltrain_train.updates import Learners
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
        """Validate, make the recipe's updates, validate again, and choose the served version.

        The tests are of the version at the start and of the served one at the end.
        """
        trial, began = ModeTrial(self.train.mode), time.monotonic()
        with self.generation:
            self._validate()
            self._test_start()
            self.learners.wait()
            self._stop_on_alarm(self.journal.updates - 1)  # a kill may have come before
            while (number := self.journal.updates) < self.train.updates:
                if reason := self._stop_reason(time.monotonic() - began):
                    self.notify(f"The run ends after {quantity(number, 'update')}: {reason}.")
                    break
                begins = time.monotonic()
                self._start_waves(number, number + trial.waves_ahead)
                self._waves.pop(number).result()
                self._update(number)
                self._stop_on_alarm(number)
                if choice := trial.add(time.monotonic() - begins):
                    self.notify(choice)
                every = self.train.validate_every
                if every and (number + 1) % every == 0:
                    self._validate()
            self._validate()
            for policy in self.policies:
                if sentence := policy.serve_best():
                    self.notify(sentence)
            self._test_end()
        self.journal.add(Finished())
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

    def _stop_on_alarm(self, number: int) -> None:
        """Stop after a training wave with a new alarm of `train.stop_on`, once for a wave."""
        if number in self.journal.stopped:
            return
        names = self.train.stop_on
        found = [text for each in self.policies for text in new_alarms(each.own, number, names)]
        if found:
            self.journal.add(Stopped(wave=number, alarms=tuple(found)))
            raise AlarmRaised(
                f"The run '{self.journal.run}' stopped after wave {number}, because train.stop_on "
                f"names an alarm that it raised: {' '.join(found)}. `ltrain show "
                f"run:{self.journal.run}` lists all alarms. The same command continues the run, "
                "until an alarm is raised that the wave before did not have."
            )

    def _start_waves(self, first: int, last: int) -> None:
        """Start the training waves from `first` to `last` that the run has and did not start."""
        for number in range(first, min(last, self.train.updates - 1) + 1):
            if number not in self._waves:
                self._waves[number] = self.generation.start("train", number)

    def _validate(self) -> None:
        self._evaluate("val", self.journal.updates)

    def _test_start(self) -> None:
        """Test the version that the run starts from, if the run is there."""
        if self.journal.updates == 0:
            self._evaluate("test", 0)

    def _test_end(self) -> None:
        """Test the served version, unless the run started with it."""
        tested = {wave.policy: wave.version for wave in self.journal.waves_of("test", 0)}
        if tested != {policy.name: policy.version for policy in self.policies}:
            # wave 0 is of the start, also where a better version of an earlier run is served
            self._evaluate("test", max(1, self.journal.updates))

    def _evaluate(self, mode: Mode, number: int) -> None:
        """Run a wave of held-out tasks, if there are some and the wave did not end before."""
        if self.generation.held_out.get(mode) and (mode, number) not in self.journal.evaluated:
            self.generation.start(mode, number).result()
            for wave in self.journal.waves_of(mode, number):
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
