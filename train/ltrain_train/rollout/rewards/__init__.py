"""What judges a result: a function, a shell command, an HTTP service, or a language model."""

from pathlib import Path

from ltrain_train.rollout.rewards.chat import BadUpstream, ChatModel, StartCall
from ltrain_train.rollout.rewards.command import RewardCommand
from ltrain_train.rollout.rewards.endpoint import EndpointAway
from ltrain_train.rollout.rewards.function import RewardFunction
from ltrain_train.rollout.rewards.judge import LlmJudge, Score
from ltrain_train.rollout.rewards.limits import REWARD_CONCURRENCY, LimitedReward, RewardLimits
from ltrain_train.rollout.rewards.service import SCHEMES, RewardService
from ltrain_train.rollout.rewards.source import (
    NO_SERVICES,
    REWARD_TIMEOUT,
    UNNAMED,
    RewardFailed,
    RewardSource,
)
from ltrain_train.workers import is_reference

__all__ = [
    "NO_SERVICES",
    "REWARD_CONCURRENCY",
    "REWARD_TIMEOUT",
    "UNNAMED",
    "BadUpstream",
    "ChatModel",
    "EndpointAway",
    "LlmJudge",
    "RewardFailed",
    "RewardLimits",
    "RewardSource",
    "Score",
    "StartCall",
    "open_reward",
]


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

    Raises:
        BadReference: when there is no such function.
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
