"""An agent and its environment as a text environment of SkyRL, whose trainer then plays them."""

from collections.abc import Callable, Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from ltrain_episodes.agent import BaseAgent, Message
from ltrain_episodes.environment import BadEnvironment
from ltrain_episodes.episode import read_action, unpack_step


class TextEnv(BaseTextEnv):  # type: ignore[misc]  # SkyRL is not in every environment
    """One episode of an agent and its environment.

    SkyRL appends to a conversation and rewrites none of it. An agent whose messages change later,
    such as one that drops its thinking, is refused.
    """

    def __init__(self, agent: BaseAgent, env: Any) -> None:
        super().__init__()
        self._agent, self._env = agent, env
        self._shown = list[Message]()

    def init(self, prompt: list[Message]) -> tuple[list[Message], dict[str, Any]]:
        """Begin the episode; the messages of the agent replace those of the row."""
        self._agent.reset()
        observation, info = self._env.reset()
        self._agent.update_from_env(observation, 0.0, False, info)
        self._shown = list(self._agent.chat_completions)
        return self._shown, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take a response of the model, and return what the environment makes of it."""
        played = read_action(self._agent.update_from_model(action), self._agent)
        observation, reward, terminated, truncated, info = unpack_step(self._env.step(played))
        done = terminated or truncated
        self._agent.update_from_env(observation, float(reward), done, info)
        return BaseTextEnvStepOutput(
            observations=[] if done else self._added(action),
            reward=float(reward),
            done=done,
            metadata=dict(info),
        )

    def _added(self, response: str) -> list[Message]:
        """Return the messages of the agent after its response."""
        messages = list(self._agent.chat_completions)
        expected = [*self._shown, {"role": "assistant", "content": response}]
        if messages[: len(expected)] != expected:
            raise BadEnvironment(
                f"{type(self._agent).__name__} changed earlier messages, and SkyRL only appends to "
                "a conversation. Train it with ltrain, or keep the messages as they were."
            )
        self._shown = messages
        return messages[len(expected) :]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def text_env(agent: Callable[[], BaseAgent], env: Any) -> Callable[..., TextEnv]:
    """Return a function that makes the episode of a row, for `skyrl_gym.register(entry_point=…)`.

    Args:
        agent: makes the agent of an episode, such as its class.
        env: makes the environment of a row: a class with `from_dict`, or a function of the row.
    """
    make_env = getattr(env, "from_dict", env)

    def make(env_config: Any = None, extras: Mapping[str, Any] | None = None) -> TextEnv:
        return TextEnv(agent(), make_env(dict(extras or {})))

    return make
