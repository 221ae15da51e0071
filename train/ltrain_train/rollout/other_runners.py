"""Finds in the store which attempts of a run another runner has open."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from ltrain_instrument.attributes import LEASE_UNTIL, SPAN_DISPATCH, SPAN_ROLLOUT
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import RunInUse
from ltrain_train.rollout.attempt_log import AttemptLog

_OPEN_SQL = f"""
SELECT RolloutId AS rollout, toUInt32(Attempt) AS attempt,
  max(toInt64OrZero(SpanAttributes['{LEASE_UNTIL}'])) AS until
FROM otel.spans
WHERE RunId = {{run:String}} AND SpanName IN ('{SPAN_DISPATCH}', '{SPAN_ROLLOUT}') AND %s
GROUP BY rollout, attempt
HAVING countIf(SpanName = '{SPAN_ROLLOUT}') = 0 AND until > {{now:Int64}}
"""


def check_leases(
    dsn: str | None, run: str, log: AttemptLog | None, *, rename: str, trust: Sequence[str] = ()
) -> None:
    """Check that no other runner has open attempts of a run, in any of its waves.

    An attempt is open if it has no closing span and its lease has not ended. A store that does not
    answer has no leases.

    Args:
        log: the log of this runner's own attempts.
        rename: how the user names the run otherwise.

    Raises:
        RunInUse: when a runner on another machine has open attempts.
    """
    # the import takes seconds, which a runner without a store saves
    from ltrain_collector.store import Store
    from ltrain_transforms.traces import sender_roles

    from_runner = sender_roles.role_condition(
        sender_roles.Role.RUNNER, sender_roles.trusted_senders(trust)
    )
    rows = list[tuple[str, int, int]]()
    with suppress(LtrainError), Store.open(dsn, create=False) as store:
        parameters = {"run": run, "now": time.time_ns()}
        rows = list(store.query(_OPEN_SQL % from_runner, parameters).iter_rows())
    others = [until for rollout, attempt, until in rows if not (log and log.has(rollout, attempt))]
    if others:
        raise RunInUse(
            f"Another runner has {quantity(len(others), 'open attempt')} of the run '{run}' in the "
            f"same store. Name this run otherwise {rename}. If that runner was killed, its leases "
            f"end at {datetime.fromtimestamp(max(others) / 1e9, UTC):%H:%M:%S} UTC."
        )
