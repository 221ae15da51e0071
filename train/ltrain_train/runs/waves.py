"""The life of a wave of rollouts: recorded, dispatched, settled in the store, and summarized."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.identity import Mode, rollout_id
from ltrain_instrument.prompts import Prompt
from ltrain_train.errors import RolloutsFailed, SpansMissing
from ltrain_train.gateway import OUTAGE_TIMEOUT
from ltrain_train.rollout import Runner, Task, describe_failures
from ltrain_train.runs.journal import Completed, Dispatched, Evaluated, Group, Journal, Repeated
from ltrain_train.runs.retry import retry_store
from ltrain_train.runs.wave_summary import WaveSummary
from ltrain_transforms.ended_rollout import EndedRollout
from ltrain_transforms.recipe import Recipe, Rollout
from ltrain_transforms.source import wait_ended
from ltrain_transforms.traces import sender_roles

NOTICE = 10.0
"""Seconds after which a wait for spans is printed."""
TRAIN_SAMPLING = {"temperature": 1.0}
"""Sampling in mode `train` unless the recipe sets it: the policy's own distribution."""

_logger = logging.getLogger("ltrain.loop")


def imposed_sampling(recipe: Recipe, mode: Mode) -> dict[str, Any]:
    """Return `sampling` and `policy_sampling` of `Runner.dispatch`.

    Held-out tasks have one temperature for all policies. In training, a policy that the recipe does
    not name has the sampling of the first trained one.
    """
    if mode != "train":
        sampling = {"temperature": _rollout(recipe).held_out_temperature}
        return {"sampling": sampling, "policy_sampling": {}}
    by_policy = {policy.name: TRAIN_SAMPLING | policy.sampling for policy in recipe.policy}
    return {"sampling": by_policy[recipe.trained[0].name], "policy_sampling": by_policy}


def _rollout(recipe: Recipe) -> Rollout:
    assert recipe.rollout is not None, "the plan has checked it"
    return recipe.rollout


def settle(
    store: Store, rollouts: Sequence[EndedRollout], timeout: float, trust: Sequence[str]
) -> set[str]:
    """Wait until the spans of ended rollouts are in the store; return the rollouts that lack some.

    The spans that the runner has counted, its own and the gateway's, are waited for as long as an
    outage may last.

    Args:
        timeout: maximum seconds for the other spans.

    Raises:
        SpansMissing: when a span that the runner has counted has not arrived.
    """
    senders = sender_roles.trusted_senders(trust)
    missing = retry_store(lambda: wait_ended(store, rollouts, min(timeout, NOTICE), senders))
    if not missing:
        return missing
    late = [each for each in rollouts if each.rollout in missing]
    collector = settings.OTLP_ENDPOINT.read()
    _logger.warning(
        "ltrain: waiting for spans of %d of %d rollouts, which the collector at %s has not stored",
        *(len(missing), len(rollouts), collector),
    )
    lacking = retry_store(lambda: wait_ended(store, late, OUTAGE_TIMEOUT, senders, whole=False))
    if lacking:
        raise SpansMissing(
            f"The store lacks spans of {len(lacking)} of {len(rollouts)} rollouts after "
            f"{OUTAGE_TIMEOUT:.0f} s: the collector at {collector} has not stored them. Check that "
            "it runs and that its disk has room, and run the same command again. If the store has "
            "lost them, start another run with another source.run."
        )
    return retry_store(lambda: wait_ended(store, late, timeout, senders))


@dataclass(frozen=True, slots=True)
class WaveRun:
    """Runs the waves of a run with a journal; a wave that was killed goes on from there."""

    recipe: Recipe
    journal: Journal
    store: Store
    runner: Runner
    logs: Path
    """Folder of the logs of workers and commands."""
    train_samples: int
    """Rollouts of each task in mode `train`."""

    @property
    def trust(self) -> Sequence[str]:
        """The senders that the recipe trusts."""
        return self.recipe.source.trust

    def record_dispatch(self, mode: Mode, number: int, tasks: Sequence[Task]) -> None:
        """Record the tasks of a wave before they are dispatched."""
        ids = tuple(task.id for task in tasks)
        self.journal.add(Dispatched(mode=mode, wave=number, tasks=ids))

    def dispatch(
        self,
        mode: Mode,
        number: int,
        tasks: Sequence[Task],
        prompts: Mapping[str, Prompt] | None = None,
    ) -> None:
        """Dispatch the rollouts of a wave's tasks; finished rollouts do not run again."""
        repeated = self.journal.repeated.get((mode, number), {})
        ended = self.runner.log.ended(self._ids(mode, [(number, task.id) for task in tasks]))
        self.runner.dispatch(
            mode,
            number,
            tasks,
            self._samples(mode),
            **imposed_sampling(self.recipe, mode),
            finished={
                each.rollout
                for each in WaveSummary(ended).counted
                if each.attempt > repeated.get(each.rollout, 0)
            },
            prompts=prompts,
        )

    def summarize(self, mode: Mode, groups: Collection[Group]) -> WaveSummary:
        """Return the summary of the rollouts of groups that have ended."""
        return WaveSummary(self.runner.log.ended(self._ids(mode, groups)))

    def complete(self, mode: Mode, number: int, groups: Collection[Group]) -> None:
        """Record that the groups of a wave have ended, and how each rollout ended."""
        ids = self._ids(mode, groups)
        ended = self.runner.log.ended(ids)
        if len(ended) < len(ids):
            raise RuntimeError(f"{len(ids) - len(ended)} rollouts of {mode} {number} have no end")
        self.journal.add(Completed(mode=mode, wave=number, rollouts=tuple(ended)))

    def settle(self, mode: Mode, number: int) -> WaveSummary:
        """Return the summary of a completed wave, when its spans are in the store."""
        rollouts = self.journal.completed[mode, number].rollouts
        settle(self.store, rollouts, self.recipe.train.span_timeout, self.trust)
        return WaveSummary(rollouts)

    def evaluated(self, mode: Mode, number: int, summary: WaveSummary, **more: Any) -> Evaluated:
        """Return the event of a summarized wave.

        Args:
            summary: its rollouts.
            more: fields of the event that the summary does not have, or in place of its own.
        """
        fields: dict[str, Any] = {
            "rollouts": summary.rollouts,
            "outcomes": summary.outcomes,
            "evaluations": summary.evaluations,
            "failures": self.describe_failures(summary),
        }
        if mode != "train":
            fields["temperature"] = _rollout(self.recipe).held_out_temperature
        return Evaluated(mode=mode, wave=number, **fields | more)

    def describe_failures(self, summary: WaveSummary) -> str:
        """Return the failures of a wave in a few lines; '' without any."""
        if not summary.failures:
            return ""
        return describe_failures(summary.failures, summary.rollouts, self.logs)

    def any_ok(self) -> bool:
        """Return whether a rollout of the run was ok in an evaluated wave."""
        return any(wave.outcomes.get("ok") for wave in self.journal.evaluated.values())

    def fail(self, mode: Mode, number: int, summary: WaveSummary) -> RolloutsFailed:
        """Record that the rollouts of a wave do not count, and return the error."""
        attempts = {each.rollout: each.attempt for each in summary.ended}
        self.journal.add(Repeated(mode=mode, wave=number, attempts=attempts))
        return RolloutsFailed(
            f"Every rollout of wave {mode} {number} failed, so nothing can be learned from it. "
            f"{self.describe_failures(summary)}\nFix the cause; the same command then tries these "
            "rollouts again."
        )

    def _samples(self, mode: Mode) -> int:
        return self.train_samples if mode == "train" else _rollout(self.recipe).validation_samples

    def _ids(self, mode: Mode, groups: Collection[Group]) -> list[str]:
        return [
            rollout_id(self.journal.run, mode, wave, task, sample)
            for wave, task in groups
            for sample in range(self._samples(mode))
        ]
