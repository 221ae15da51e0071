"""An episode: agents and an environment take turns until the environment ends it.

Each turn is a span `invoke_agent`, in which the model is called and the action is a span
`execute_tool`. The reward of a step is an evaluation of that tool call, named `step`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from opentelemetry import trace
from opentelemetry.trace import Span

from ltrain_episodes.agent import BaseAgent, Message, Trajectory
from ltrain_episodes.environment import BadEnvironment
from ltrain_instrument import reward

MAX_STEPS = 32
"""Steps of an episode whose environment does not end it."""

Agents = Mapping[str, BaseAgent]
ChatModel = Callable[[Sequence[Message]], str]
"""Returns the text that answers messages."""
End = Literal["terminated", "truncated", "max_steps"]


@dataclass(frozen=True, slots=True)
class Episode:
    """The steps of the episode."""

    trajectories: Mapping[str, Trajectory]
    """By agent."""
    rewards: Mapping[str, float]
    """The sum of the rewards of each agent."""
    end: End
    steps: int

    @property
    def reward(self) -> float:
        """The sum of the rewards of all agents."""
        return sum(self.rewards.values())

    def as_result(self) -> dict[str, Any]:
        """Return the result of a rollout, which `episode_reward` reads."""
        rewards = dict(self.rewards)
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
    named = dict(agents) if isinstance(agents, Mapping) else {type(agents).__name__: agents}
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
        self._rewards = dict.fromkeys(agents, 0.0)
        self._unheard = dict.fromkeys(agents, 0.0)
        """Rewards of agents that did not act since: each hears of them before it acts again."""

    def play(self, max_steps: int) -> Episode:
        for agent in self._agents.values():
            agent.reset()
        observation, info = self._env.reset()
        for steps in range(1, max_steps + 1):
            name = self._next(info)
            self._tell(name, observation, info)
            observation, end, info = self._turn(name)
            if end is not None:
                for each in self._agents:
                    self._tell(each, observation, info, done=True)
                return self._episode(end, steps)
        return self._episode("max_steps", max_steps)

    def _tell(
        self, name: str, observation: Any, info: dict[str, Any], *, done: bool = False
    ) -> None:
        """Pass an observation and the rewards since its last turn to an agent."""
        agent, reward = self._agents[name], self._unheard[name]
        self._unheard[name] = 0.0
        if agent.trajectory.steps or not done:  # an agent that never acted has nothing to complete
            agent.update_from_env(observation, reward, done, info)

    def _turn(self, name: str) -> tuple[Any, End | None, dict[str, Any]]:
        """Let an agent act once, and return what the environment makes of it."""
        agent = self._agents[name]
        with agent_span(name):
            model = self._model if callable(self._model) else self._model[name]
            response = model(agent.chat_completions)
            action = read_action(agent.update_from_model(response), agent)
            with step_span(self._env, action) as span:
                observation, reward, terminated, truncated, info = unpack_step(
                    self._env.step(action)
                )
                rewards = self._read_rewards(name, reward)
                record_step(span, observation, rewards.get(name, 0.0))
        for each, value in rewards.items():
            self._rewards[each] += value
            self._unheard[each] += value
        return observation, _end(terminated, truncated), info

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

    def _read_rewards(self, acting: str, reward: Any) -> dict[str, float]:
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
        return Episode(trajectories, self._rewards, end, steps)


def read_action(returned: Any, agent: BaseAgent) -> Any:
    """Return the action itself; rLLM's agents return it in an object, or only keep it."""
    if returned is None:
        return agent.trajectory.steps[-1].action
    return getattr(returned, "action", returned)


def unpack_step(returned: Sequence[Any]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
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


SCOPE = "ltrain.episodes"
STEP_REWARD = "step"
"""The name of the evaluation of a step."""


@contextmanager
def agent_span(name: str) -> Iterator[None]:
    """Trace one turn of an agent."""
    values = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    with _tracer().start_as_current_span(f"invoke_agent {name}", attributes=values):
        yield


@contextmanager
def step_span(env: Any, action: Any) -> Iterator[Span]:
    """Trace one step of an environment as a tool call; an exception is its error."""
    name = _name(env)
    values = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.arguments": _text({"action": action}),
    }
    with _tracer().start_as_current_span(f"execute_tool {name}", attributes=values) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            raise


def record_step(span: Span, observation: Any, value: float) -> None:
    """Record what a step returned: the observation, and the reward as an evaluation of the step."""
    span.set_attribute("gen_ai.tool.call.result", _text(observation))
    reward(value, STEP_REWARD, scope="call")


def _name(env: Any) -> str:
    """Return a name, the id of an environment of Gymnasium, or the name of the class."""
    if isinstance(env, str):
        return env
    return getattr(getattr(env, "spec", None), "id", None) or type(env).__name__


def _tracer() -> trace.Tracer:
    return trace.get_tracer(SCOPE)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
