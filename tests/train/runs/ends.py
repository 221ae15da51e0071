"""The ends of rollouts for tests: made up, or read from a store in place of a runner's log."""

from collections.abc import Iterable
from dataclasses import dataclass

from ltrain_collector.store import Store
from ltrain_instrument.attributes import OUTCOME_REASON, SPAN_ROLLOUT
from ltrain_transforms.ended_rollout import EndedRollout

CLOSED_SQL = f"""
SELECT RolloutId AS rollout, argMax(Attempt, Timestamp) AS attempt,
    argMax(toString(Outcome), Timestamp) AS outcome,
    argMax(SpanAttributes['{OUTCOME_REASON}'], Timestamp) AS reason,
    any(TaskId) AS task, any(Wave) AS wave
FROM otel.spans
WHERE RolloutId IN {{rollouts:Array(String)}} AND SpanName = '{SPAN_ROLLOUT}'
GROUP BY rollout
"""
EVALUATED_SQL = """
SELECT rollout, attempt, name, argMax(value, (judged, span)) AS value
FROM otel.evaluations
WHERE rollout IN {rollouts:Array(String)}
GROUP BY rollout, attempt, name
"""


def ended(task: str, outcome: str = "ok", *, wave: int = 0, **evaluations: float) -> EndedRollout:
    """Return the end of the first attempt at a task's only rollout."""
    return EndedRollout(
        rollout=f"{wave}{task}", attempt=1, task=task, wave=wave, outcome=outcome,
        evaluations=evaluations,
    )  # fmt: skip


@dataclass
class StoredEnds:
    """The rollouts of a store that have ended, each with its last attempt."""

    store: Store

    def ended(self, rollouts: Iterable[str]) -> list[EndedRollout]:
        parameters = {"rollouts": [*rollouts]}
        values = dict[tuple[str, int], dict[str, float]]()
        for rollout, attempt, name, value in self.store.query(
            EVALUATED_SQL, parameters
        ).iter_rows():
            values.setdefault((rollout, int(attempt)), {})[name] = value
        closed = self.store.query(CLOSED_SQL, parameters).sort("rollout").to_dicts()
        return [
            EndedRollout(
                **(row | {"attempt": int(row["attempt"])}),
                evaluations=values.get((row["rollout"], int(row["attempt"])), {}),
            )
            for row in closed
        ]
