"""Feedback on executions that ended before."""

import pytest

import ltrain_instrument as ltrain
from ltrain_instrument.errors import BadReward
from ltrain_instrument.feedback import Target

TRACE = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("ids", "attributes"),
    [
        ((None, None, None), None),
        (("r1", None, None), {"ltrain.rollout.id": "r1"}),
        ((None, TRACE, None), {}),
        ((None, None, "s1"), {"gen_ai.conversation.id": "s1"}),
    ],
)
def test_a_target_is_one_id(ids: tuple[str | None, ...], attributes: dict[str, str] | None) -> None:
    target = Target.from_ids(*ids)
    assert (target and target.attributes()) == attributes


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (("r1", TRACE, None), "one target, not rollout and trace"),
        ((None, TRACE[:-1], None), "is no trace id"),
        ((None, TRACE.upper(), None), "is no trace id"),
        ((None, "0" * 32, None), "is no trace id"),
        (("  ", None, None), "The id of the rollout is empty"),
    ],
)
def test_a_target_that_cannot_be_is_refused(ids: tuple[str | None, ...], message: str) -> None:
    with pytest.raises(BadReward, match=message):
        Target.from_ids(*ids)


def test_feedback_judges_no_call() -> None:
    with pytest.raises(BadReward, match="not a call"):
        ltrain.reward(1, scope="call", rollout="r1")
