"""Agents and environments in the style of rLLM and Gymnasium, driven as rollouts.

An agent keeps the conversation, an environment holds the problem and judges each action, and an
episode lets them alternate until the environment ends it. Every model call and every step of the
environment is in the trace.
"""

from ltrain_agents.agent import Action, BaseAgent, Message, Step, Trajectory
from ltrain_agents.environment import BaseEnv
from ltrain_agents.episode import Episode, episode_reward, run_episode, solve_with
from ltrain_agents.math_agent import MathAgent
from ltrain_agents.math_env import MathEnv
from ltrain_agents.math_reward import RewardOutput, math_reward_fn
from ltrain_agents.model import ChatModel, chat_model

__all__ = [
    "Action",
    "BaseAgent",
    "BaseEnv",
    "ChatModel",
    "Episode",
    "MathAgent",
    "MathEnv",
    "Message",
    "RewardOutput",
    "Step",
    "Trajectory",
    "chat_model",
    "episode_reward",
    "math_reward_fn",
    "run_episode",
    "solve_with",
]
