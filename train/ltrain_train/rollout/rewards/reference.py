"""The reward that a reference names: a URL, a function, or a command."""

from pathlib import Path

from ltrain_train.rollout.rewards.command import RewardCommand
from ltrain_train.rollout.rewards.function import RewardFunction
from ltrain_train.rollout.rewards.limits import LimitedReward, RewardLimits
from ltrain_train.rollout.rewards.service import SCHEMES, RewardService
from ltrain_train.rollout.rewards.source import REWARD_TIMEOUT, RewardSource
from ltrain_train.workers import is_reference


def open_reward(
    reference: str,
    folder: Path,
    timeout: float = REWARD_TIMEOUT,
    limits: RewardLimits | None = None,
) -> RewardSource:
    """Return what `reference` names: a URL, `module:function`, or else a command.

    Args:
        reference: the reward.
        folder: folder of the module or the command.
        timeout: seconds for all calls on one result.
        limits: how many results are judged at a time, and how many calls start in a second.
    """
    limits = limits or RewardLimits()
    return LimitedReward(_open_source(reference, folder, timeout, limits), limits)


def _open_source(
    reference: str, folder: Path, timeout: float, limits: RewardLimits
) -> RewardSource:
    if reference.startswith(SCHEMES):
        return RewardService(reference, timeout, limits)
    if is_reference(reference):
        return RewardFunction(reference, folder, timeout, limits)
    return RewardCommand(reference, folder, timeout, limits)
