"""The waves of rollouts that compare prompts; a wave has one version of the prompt.

A continued run returns the waves of its journal, and runs what the store lacks of another one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ltrain_instrument.attributes import OUTCOME_REASON, RESULT, SPAN_ROLLOUT
from ltrain_instrument.identity import Mode
from ltrain_instrument.prompts import Prompt
from ltrain_train.rollout import Task
from ltrain_train.runs import (
    Journal,
    PolicyScore,
    Trained,
    Wave,
    WaveRun,
    outcome_score,
    retry_store,
    task_scores,
)
from ltrain_train.workers import parse_json
from ltrain_transforms.traces import Role, sender_roles

RESULTS_SQL = f"""
WITH (toUInt32OrZero(Attempt), Timestamp) AS place
SELECT TaskId AS task, argMax(SpanAttributes['{RESULT}'], place) AS result,
    argMax(SpanAttributes['{OUTCOME_REASON}'], place) AS reason
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


@dataclass(frozen=True, slots=True)
class PromptWaves:
    """Runs the waves of one run."""

    waves: WaveRun
    policy: str
    """The policy of the prompts."""
    on_wave: Callable[[Wave], None]
    """Called with each wave that this process has run."""

    def run(self, waves: Sequence[PromptWave]) -> list[PolicyScore]:
        """Run waves at the same time, and return the scores of each."""
        missing = [wave for wave in waves if (wave.mode, wave.number) not in self.journal.evaluated]
        began = time.monotonic()
        for wave in missing:
            self._dispatch(wave)
        if missing:
            self.waves.runner.wait()
        for wave in missing:
            self._evaluate(wave, (time.monotonic() - began) / len(missing))
        evaluated = (self.journal.evaluated[wave.mode, wave.number] for wave in waves)
        return [each.policies[self.policy] for each in evaluated]

    def examples(self, wave: PromptWave, most: int) -> list[dict[str, Any]]:
        """Return the tasks of a wave with the lowest scores, each with its result and its score."""
        scores = self.journal.evaluated[wave.mode, wave.number].policies[self.policy].tasks
        run, parameters = self.journal.run, {"mode": wave.mode, "wave": wave.number}
        senders, store = sender_roles.trusted_senders(self.waves.trust), self.waves.store
        sql = RESULTS_SQL % sender_roles.role_condition(Role.RUNNER, senders)
        rows = retry_store(lambda: store.query(sql, {"run": run, **parameters})).to_dicts()
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
    def journal(self) -> Journal:
        """The journal of the run."""
        return self.waves.journal

    def _dispatch(self, wave: PromptWave) -> None:
        mode, number = wave.mode, wave.number
        if not self.journal.dispatched(mode, number):
            self.waves.record_dispatch(mode, number, wave.tasks)
        self.waves.dispatch(mode, number, wave.tasks, {self.policy: wave.prompt})

    def _evaluate(self, wave: PromptWave, seconds: float) -> None:
        mode, number, waves = wave.mode, wave.number, self.waves
        waves.complete(mode, number, sorted((number, task.id) for task in wave.tasks))
        summary, rewards = waves.settle(mode, number), waves.recipe.reward
        if not summary.counted or not (summary.outcomes.get("ok") or waves.any_ok()):
            raise waves.fail(mode, number, summary)
        scores = task_scores(rewards, summary.counted)
        score = PolicyScore(
            version=wave.version,
            score=outcome_score(rewards, summary.evaluations) or 0.0,
            tasks={task.id: scores.get(task.id, 0.0) for task in wave.tasks},
        )
        own: dict[str, Any] = {
            "policies": {self.policy: score},
            "seconds": {"generate": round(seconds, 2)},
        }
        evaluated = waves.evaluated(mode, number, summary, **own)
        self.journal.add(evaluated)
        if mode == "train":
            self.journal.add(Trained(policy=self.policy, wave=number, changed=False))
        recorded = self.journal.of(self.policy).wave(mode, number)
        assert recorded is not None, "its last event has been added"
        self.on_wave(recorded)


def _parse_result(text: str) -> Any:
    """Return a recorded result; one that was not recorded, or shortened, as its text."""
    try:
        return parse_json(text) if text else None
    except ValueError:
        return text
