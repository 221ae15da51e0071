"""What judges a result: a function, a shell command or an HTTP service."""

from pathlib import Path

from ltrain_train.rollout.rewards.command import RewardCommand
from ltrain_train.rollout.rewards.function import RewardFunction
from ltrain_train.rollout.rewards.service import SCHEMES, RewardService
from ltrain_train.rollout.rewards.source import (
    REWARD_TIMEOUT,
    UNNAMED,
    RewardFailed,
    RewardSource,
)
from ltrain_train.workers import is_reference

__all__ = [
    "REWARD_TIMEOUT",
    "UNNAMED",
    "RewardFailed",
    "RewardSource",
    "open_reward",
]


def open_reward(reference: str, folder: Path, timeout: float = REWARD_TIMEOUT) -> RewardSource:
    """Return what `reference` names: a URL, `module:function`, or else a command.

    Raises:
        BadReference: when there is no such function.
    """
    if reference.startswith(SCHEMES):
        return RewardService(reference, timeout)
    if is_reference(reference):
        return RewardFunction(reference, folder, timeout)
    return RewardCommand(reference, folder, timeout)
