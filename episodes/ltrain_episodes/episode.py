"""An episode: agents and an environment take turns until the environment ends it.

Each turn is a span `invoke_agent`, in which the model is called and the action is a span
`execute_tool`. The reward of a step is an evaluation of that tool call, named `step`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from ltrain_episodes import tracing
from ltrain_episodes.agent import BaseAgent, Message, Trajectory
from ltrain_episodes.environment import BadEnvironment

MAX_STEPS = 32
"""Steps of an episode whose environment does not end it."""

Agents = Mapping[str, BaseAgent]
ChatModel = Callable[[Sequence[Message]], str]
"""Returns the text that answers messages."""
End = Literal["terminated", "truncated", "max_steps"]


@dataclass(frozen=True, slots=True)
class Episode:
    """What happened."""

    trajectories: Mapping[str, Trajectory]
    """By agent."""
    end: End
    steps: int

    @property
    def reward(self) -> float:
        """The sum of the rewards of all agents."""
        return sum(trajectory.reward for trajectory in self.trajectories.values())

    def as_result(self) -> dict[str, Any]:
        """Return the result of a rollout, which `episode_reward` reads."""
        rewards = {name: each.reward for name, each in self.trajectories.items()}
        return {"reward": self.reward, "rewards": rewards, "end": self.end, "steps": self.steps}


def run_episode(
    agents: BaseAgent | Agents,
    env: Any,
    model: ChatModel | Mapping[str, ChatModel],
    *,
    max_steps: int = MAX_STEPS,
) -> Episode:
    """Run an episode, and close the environment.

    Args:
        agents: one agent, or several by name: `info["agent"]` of the environment names the one
            that acts next.
        env: a `BaseEnv`, or an environment of Gymnasium or rLLM.
        model: the model of all agents, or one for each.
        max_steps: steps after which the episode is cut.

    Raises:
        BadEnvironment: when the environment names no agent, or a reward is not a number.
    """
    named = {type(agents).__name__: agents} if isinstance(agents, BaseAgent) else dict(agents)
    with closing(env):
        return _Run(named, env, model).play(max_steps)


def chat_model(llm: Any, **options: Any) -> ChatModel:
    """Return the model behind an endpoint that the runner passes to an agent.

    Args:
        llm: has `base_url`, `api_key` and `model`.
        options: further fields of each request, e.g. `max_tokens=256`.
    """
    from openai import OpenAI

    client = OpenAI(base_url=llm.base_url, api_key=llm.api_key)

    def complete(messages: Sequence[Message]) -> str:
        response = client.chat.completions.create(
            model=llm.model,
            messages=list(messages),  # type: ignore[arg-type]
            **options,
        )
        return response.choices[0].message.content or ""

    return complete


def solve_with(
    agent: Callable[[], BaseAgent] | Mapping[str, Callable[[], BaseAgent]],
    env: Any,
    *,
    max_steps: int = MAX_STEPS,
    **options: Any,
) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Return a function `solve(task, llm)` that a recipe can name as its agent.

    Args:
        agent: makes the agent of an episode, such as its class; or several, by name.
        env: makes the environment of a task: a class with `from_dict`, or a function of the task.
        max_steps: steps after which the episode is cut.
        options: fields of each request to the model, such as `max_tokens=256`.
    """

    make_env = getattr(env, "from_dict", env)

    def solve(task: dict[str, Any], llm: Any) -> dict[str, Any]:
        agents = (
            {name: make() for name, make in agent.items()}
            if isinstance(agent, Mapping)
            else agent()
        )
        model = chat_model(llm, **options)
        return run_episode(agents, make_env(task), model, max_steps=max_steps).as_result()

    return solve


def episode_reward(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return the rewards of an episode for a recipe: `reward`, and one by agent if several act."""
    rewards: Mapping[str, float] = result["rewards"]
    by_agent = rewards if len(rewards) > 1 else {}
    return {"reward": result["reward"], **{f"reward.{name}": by_agent[name] for name in by_agent}}


class _Run:
    """The state of a running episode."""

    def __init__(
        self, agents: Agents, env: Any, model: ChatModel | Mapping[str, ChatModel]
    ) -> None:
        self._agents, self._env, self._model = agents, env, model

    def play(self, max_steps: int) -> Episode:
        for agent in self._agents.values():
            agent.reset()
        observation, info = self._env.reset()
        name = self._next(info)
        self._agents[name].update_from_env(observation, 0.0, False, info)
        for steps in range(1, max_steps + 1):
            observation, rewards, end, info = self._turn(name)
            if end is not None:
                self._finish(name, observation, rewards, info)
                return self._episode(end, steps)
            following = self._next(info)
            self._pass_on(name, following, observation, rewards, info)
            name = following
        return self._episode("max_steps", max_steps)

    def _turn(self, name: str) -> tuple[Any, dict[str, float], End | None, dict[str, Any]]:
        """Let an agent act once, and return what the environment makes of it."""
        agent = self._agents[name]
        with tracing.agent_span(name):
            model = self._model if callable(self._model) else self._model[name]
            response = model(agent.chat_completions)
            action = _action(agent.update_from_model(response), agent)
            with tracing.step_span(self._env, action) as span:
                observation, reward, terminated, truncated, info = _unpack(self._env.step(action))
                rewards = self._rewards(name, reward)
                tracing.record_step(span, observation, rewards.get(name, 0.0))
        return observation, rewards, _end(terminated, truncated), info

    def _pass_on(
        self,
        acting: str,
        following: str,
        observation: Any,
        rewards: dict[str, float],
        info: dict[str, Any],
    ) -> None:
        if acting == following:
            self._agents[acting].update_from_env(observation, rewards.get(acting, 0.0), False, info)
            self._add_rewards({name: rewards[name] for name in rewards if name != acting})
            return
        self._add_rewards(rewards)
        self._agents[following].update_from_env(observation, 0.0, False, info)

    def _finish(
        self, acting: str, observation: Any, rewards: dict[str, float], info: dict[str, Any]
    ) -> None:
        self._agents[acting].update_from_env(observation, rewards.get(acting, 0.0), True, info)
        self._add_rewards({name: rewards[name] for name in rewards if name != acting})

    def _add_rewards(self, rewards: Mapping[str, float]) -> None:
        """Add rewards to the last steps of agents that do not hear of them otherwise."""
        for name, reward in rewards.items():
            if steps := self._agents[name].trajectory.steps:
                steps[-1].reward += reward

    def _next(self, info: Mapping[str, Any]) -> str:
        if len(self._agents) == 1:
            return next(iter(self._agents))
        name = info.get("agent")
        if name not in self._agents:
            raise BadEnvironment(
                f"{type(self._env).__name__} names {name!r} as the next agent in info['agent']. "
                f"Choose from: {', '.join(self._agents)}."
            )
        return str(name)

    def _rewards(self, acting: str, reward: Any) -> dict[str, float]:
        rewards = reward if isinstance(reward, Mapping) else {acting: reward}
        if unknown := [name for name in rewards if name not in self._agents]:
            raise BadEnvironment(
                f"{type(self._env).__name__} rewards {unknown[0]!r}, which is no agent. "
                f"Choose from: {', '.join(self._agents)}."
            )
        return {name: self._finite(value) for name, value in rewards.items()}

    def _finite(self, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise BadEnvironment(
                f"{type(self._env).__name__} returned the reward {value!r}. Return a finite number."
            )
        return number

    def _episode(self, end: End, steps: int) -> Episode:
        trajectories = {name: agent.trajectory for name, agent in self._agents.items()}
        return Episode(trajectories, end, steps)


def _action(returned: Any, agent: BaseAgent) -> Any:
    """Return the action itself; rLLM's agents return it in an object, or only keep it."""
    if returned is None:
        return agent.trajectory.steps[-1].action
    return getattr(returned, "action", returned)


def _unpack(returned: Sequence[Any]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
    """Return the five values of Gymnasium's `step`; rLLM's has no `truncated`."""
    if len(returned) == 4:
        observation, reward, done, info = returned
        return observation, reward, bool(done), False, info
    observation, reward, terminated, truncated, info = returned
    return observation, reward, bool(terminated), bool(truncated), info


def _end(terminated: bool, truncated: bool) -> End | None:
    if terminated:
        return "terminated"
    return "truncated" if truncated else None
