"""The sources of a reward: a function, a shell command, an HTTP service, or a language model."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.rollout.rewards.chat import BadUpstream, ChatModel, StartCall
    from ltrain_train.rollout.rewards.endpoint import EndpointAway
    from ltrain_train.rollout.rewards.judge import LlmJudge, Score
    from ltrain_train.rollout.rewards.limits import REWARD_CONCURRENCY, RewardLimits
    from ltrain_train.rollout.rewards.reference import open_reward
    from ltrain_train.rollout.rewards.source import (
        NO_SERVICES,
        REWARD_TIMEOUT,
        UNNAMED,
        RewardFailed,
        RewardSource,
    )

open_face(__name__)
