"""Which rollouts of a wave are finished, asked of the store."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ltrain_instrument.attributes import MODE, OUTCOME, SPAN_ROLLOUT, WAVE
from ltrain_instrument.identity import Mode
from ltrain_train.rollout.attempt import COUNTING

if TYPE_CHECKING:  # a runner without a store must not pay seconds for its import
    from ltrain_collector.store import Store

_FINISHED = f"""
SELECT DISTINCT RolloutId AS rollout
FROM otel.spans
WHERE RunId = {{run:String}} AND SpanName = '{SPAN_ROLLOUT}' AND %s
  AND SpanAttributes['{MODE}'] = {{mode:String}}
  AND SpanAttributes['{WAVE}'] = {{wave:String}}
  AND has({{outcomes:Array(String)}}, SpanAttributes['{OUTCOME}'])
"""


def finished(
    store: "Store", run: str, mode: Mode, wave: int, trust: Sequence[str] = ()
) -> set[str]:
    """Return the ids of the rollouts with an outcome that counts: ok, error or timeout.

    Args:
        trust: the recipe's `source.trust`.
    """
    from ltrain_transforms import roles

    asked = {"run": run, "mode": mode, "wave": str(wave), "outcomes": sorted(COUNTING)}
    runner = roles.role_condition(roles.Role.RUNNER, roles.trusted_senders(trust))
    return set(store.query(_FINISHED % runner, asked)["rollout"].to_list())
