"""The waves of rollouts with which a run compares prompts; a wave is of one version.

A continued run returns the waves of its journal, and runs what the store lacks of another one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrain_collector.store import Store
from ltrain_instrument.attributes import OUTCOME_REASON, RESULT, SPAN_ROLLOUT
from ltrain_instrument.identity import Mode, rollout_id
from ltrain_instrument.prompts import Prompt
from ltrain_train.errors import RolloutsFailed
from ltrain_train.rollout import Runner, Task, describe_failures, finished_rollouts
from ltrain_train.runs import (
    Completed,
    Dispatched,
    Evaluated,
    Journal,
    PolicyScore,
    Repeated,
    Trained,
    Wave,
    imposed_sampling,
    outcome_score,
    retry_store,
    summarize_groups,
    task_scores,
)
from ltrain_train.workers import parse_json
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import wait_complete
from ltrain_transforms.traces import Role, sender_roles

RESULTS_SQL = f"""
SELECT TaskId AS task, argMax(SpanAttributes['{RESULT}'], Timestamp) AS result,
    argMax(SpanAttributes['{OUTCOME_REASON}'], Timestamp) AS reason
FROM otel.spans
WHERE RunId = {{run:String}} AND Mode = {{mode:String}} AND Wave = {{wave:UInt32}}
    AND SpanName = '{SPAN_ROLLOUT}' AND %s
GROUP BY task, SampleIndex ORDER BY task, SampleIndex
"""


@dataclass(frozen=True, slots=True)
class PromptWave:
    """A wave to run."""

    mode: Mode
    number: int
    prompt: Prompt
    tasks: Sequence[Task]

    @property
    def version(self) -> int:
        """The version of the prompt."""
        return self.prompt.version or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWaves:
    """Runs the waves of one run."""

    recipe: Recipe
    policy: str
    """The policy of the prompts."""
    journal: Journal
    store: Store
    runner: Runner
    logs: Path
    """Folder of the logs of workers and commands."""
    on_wave: Callable[[Wave], None]
    """Called with each wave that this process has run."""

    def run(self, waves: Sequence[PromptWave]) -> list[PolicyScore]:
        """Run waves at the same time, and return the scores of each.

        Raises:
            RolloutsFailed: when no rollout of a wave counts, or none of the run was ok so far.
            errors of `Runner.wait`.
        """
        missing = [wave for wave in waves if (wave.mode, wave.number) not in self.journal.evaluated]
        began = time.monotonic()
        for wave in missing:
            self._dispatch(wave)
        if missing:
            self.runner.wait()
        for wave in missing:
            self._evaluate(wave, (time.monotonic() - began) / len(missing))
        evaluated = (self.journal.evaluated[wave.mode, wave.number] for wave in waves)
        return [each.policies[self.policy] for each in evaluated]

    def examples(self, wave: PromptWave, most: int) -> list[dict[str, Any]]:
        """Return the tasks of a wave with the lowest scores, each with its result and its score."""
        scores = self.journal.evaluated[wave.mode, wave.number].policies[self.policy].tasks
        run, parameters = self.journal.run, {"mode": wave.mode, "wave": wave.number}
        sql = RESULTS_SQL % sender_roles.role_condition(Role.RUNNER, self._senders)
        rows = retry_store(lambda: self.store.query(sql, {"run": run, **parameters})).to_dicts()
        results = {row["task"]: row for row in reversed(rows)}
        known = {task.id: task for task in wave.tasks}
        lowest = sorted(scores, key=lambda task: (scores[task], task))[:most]
        return [
            {
                "task": known[task].model_dump(mode="json"),
                "result": _parse_result(results[task]["result"]),
                **({"failed": reason} if (reason := results[task]["reason"]) else {}),
                "score": scores[task],
            }
            for task in lowest
        ]

    @property
    def _senders(self) -> Sequence[str]:
        return sender_roles.trusted_senders(self.recipe.source.trust)

    def _samples(self, mode: Mode) -> int:
        rollout, search = self.recipe.rollout, self.recipe.prompt
        assert rollout is not None and search is not None, "the plan has checked it"
        return search.samples if mode == "train" else rollout.validation_samples

    def _ids(self, wave: PromptWave) -> list[str]:
        return [
            rollout_id(self.journal.run, wave.mode, wave.number, task.id, sample)
            for task in wave.tasks
            for sample in range(self._samples(wave.mode))
        ]

    def _dispatch(self, wave: PromptWave) -> None:
        mode, number, run, trust = (
            *(wave.mode, wave.number),
            *(self.journal.run, self.recipe.source.trust),
        )
        if not self.journal.dispatched(mode, number):
            tasks = tuple(task.id for task in wave.tasks)
            self.journal.add(Dispatched(mode=mode, wave=number, tasks=tasks))
        since = self.journal.repeated.get((mode, number), 0)
        stored = retry_store(
            lambda: finished_rollouts(self.store, run, mode, number, trust, since=since)
        )
        self.runner.dispatch(
            mode,
            number,
            wave.tasks,
            self._samples(mode),
            **imposed_sampling(self.recipe, mode),
            finished=stored.keys() & set(self._ids(wave)),
            prompts={self.policy: wave.prompt},
        )

    def _evaluate(self, wave: PromptWave, seconds: float) -> None:
        mode, number, rewards = wave.mode, wave.number, self.recipe.reward
        ids, timeout = self._ids(wave), self.recipe.train.span_timeout
        retry_store(lambda: wait_complete(self.store, ids, timeout, self._senders))
        groups = {(number, task.id) for task in wave.tasks}
        run, trust = self.journal.run, self.recipe.source.trust
        summary = retry_store(lambda: summarize_groups(self.store, run, mode, groups, trust))
        failures = ""
        if summary.failures:
            failures = describe_failures(summary.failures, summary.rollouts, self.logs)
        if not summary.counted or not (summary.outcomes.get("ok") or self._any_ok()):
            self.journal.add(Repeated(mode=mode, wave=number, time=time.time_ns()))
            raise RolloutsFailed(
                f"Every rollout of wave {mode} {number} failed, so nothing can be learned from it. "
                f"{failures}\nFix the cause; the same command then tries these rollouts again."
            )
        scores = task_scores(rewards, summary.counted)
        evaluated = Evaluated(
            mode=mode,
            wave=number,
            rollouts=summary.rollouts,
            outcomes=summary.outcomes,
            evaluations=summary.evaluations,
            policies={
                self.policy: PolicyScore(
                    version=wave.version,
                    score=outcome_score(rewards, summary.evaluations) or 0.0,
                    tasks={task.id: scores.get(task.id, 0.0) for task in wave.tasks},
                )
            },
            failures=failures,
            seconds={"generate": round(seconds, 2)},
        )
        self.journal.add(Completed(mode=mode, wave=number, groups=tuple(sorted(groups))))
        self.journal.add(evaluated)
        if mode == "train":
            self.journal.add(Trained(policy=self.policy, wave=number, changed=False))
        recorded = self.journal.of(self.policy).wave(mode, number)
        assert recorded is not None, "its last event has been added"
        self.on_wave(recorded)

    def _any_ok(self) -> bool:
        return any(wave.outcomes.get("ok") for wave in self.journal.evaluated.values())


def _parse_result(text: str) -> Any:
    """Return a recorded result; one that was not recorded, or shortened, as its text."""
    try:
        return parse_json(text) if text else None
    except ValueError:
        return text
