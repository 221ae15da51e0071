"""Agents and environments in the style of rLLM and Gymnasium, driven as rollouts.

An agent keeps the conversation, an environment holds the problem and judges each action, and an
episode lets them alternate until the environment ends it. Every model call and every step of the
environment is in the trace.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_episodes.agent import Action, BaseAgent, Message, Step, Trajectory
    from ltrain_episodes.environment import BadEnvironment, BaseEnv
    from ltrain_episodes.episode import (
        ChatModel,
        Episode,
        chat_model,
        episode_reward,
        run_episode,
        solve_with,
    )
    from ltrain_episodes.math_agent import MathAgent
    from ltrain_episodes.math_env import MathEnv
    from ltrain_episodes.math_reward import RewardOutput, math_reward_fn
    from ltrain_episodes.text_agent import TextAgent

open_face(__name__)
