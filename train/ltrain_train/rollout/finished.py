"""Finds in the store which rollouts of a wave are finished, and which another runner runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ltrain_instrument.attributes import LEASE_UNTIL, OUTCOME, SPAN_DISPATCH, SPAN_ROLLOUT
from ltrain_instrument.identity import Mode
from ltrain_train.workers import COUNTED_OUTCOMES

if TYPE_CHECKING:  # its import takes seconds, which a runner without a store saves
    from ltrain_collector.store import Store

_FINISHED_SQL = f"""
SELECT RolloutId AS rollout, argMax(SpanAttributes['{OUTCOME}'], Timestamp) AS outcome
FROM otel.spans
WHERE RunId = {{run:String}} AND SpanName = '{SPAN_ROLLOUT}' AND %s
  AND Mode = {{mode:String}} AND Wave = {{wave:UInt32}}
  AND has({{outcomes:Array(String)}}, SpanAttributes['{OUTCOME}'])
  AND toUnixTimestamp64Nano(Timestamp) >= {{since:Int64}}
GROUP BY rollout
"""
_OPEN_SQL = f"""
SELECT RolloutId AS rollout, toUInt32(Attempt) AS attempt,
  max(toInt64OrZero(SpanAttributes['{LEASE_UNTIL}'])) AS until
FROM otel.spans
WHERE RunId = {{run:String}} AND SpanName IN ('{SPAN_DISPATCH}', '{SPAN_ROLLOUT}') AND %s
  AND Mode = {{mode:String}} AND Wave = {{wave:UInt32}}
GROUP BY rollout, attempt
HAVING countIf(SpanName = '{SPAN_ROLLOUT}') = 0 AND until > {{now:Int64}}
"""


def finished_rollouts(
    store: "Store", run: str, mode: Mode, wave: int, trust: Sequence[str] = (), *, since: int = 0
) -> dict[str, str]:
    """Return the last counted outcome (ok, error or timeout) by rollout id.

    Args:
        store: the store.
        run: the run's name.
        mode: the mode of the rollouts.
        wave: number of the wave.
        trust: the recipe's `source.trust`.
        since: attempts that started earlier (Unix ns) do not count.
    """
    from ltrain_transforms.traces import sender_roles

    parameters = {
        **{"run": run, "mode": mode, "wave": wave, "since": since},
        "outcomes": sorted(COUNTED_OUTCOMES),
    }
    from_runner = sender_roles.role_condition(
        sender_roles.Role.RUNNER, sender_roles.trusted_senders(trust)
    )
    return dict(store.query(_FINISHED_SQL % from_runner, parameters).iter_rows())


def leased_attempts(
    store: "Store", run: str, mode: Mode, wave: int, now: int
) -> dict[tuple[str, int], int]:
    """Return the end of the lease (Unix ns) of each open attempt, by rollout and attempt.

    An attempt is open if it has no closing span and its lease lasts longer than `now`.
    """
    from ltrain_transforms.traces import sender_roles

    parameters = {"run": run, "mode": mode, "wave": wave, "now": now}
    from_runner = sender_roles.role_condition(
        sender_roles.Role.RUNNER, sender_roles.trusted_senders(())
    )
    rows = store.query(_OPEN_SQL % from_runner, parameters).iter_rows()
    return {(rollout, attempt): until for rollout, attempt, until in rows}
