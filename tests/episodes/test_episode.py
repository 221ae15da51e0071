"""Episodes: agents of rLLM, environments of Gymnasium and rLLM, several agents in one."""

from typing import Any

import pytest

from ltrain_episodes import (
    Action,
    BadEnvironment,
    BaseAgent,
    BaseEnv,
    Message,
    Step,
    Trajectory,
    episode_reward,
    run_episode,
)


class Player(BaseAgent):
    """Plays the model's response; `returned` is what `update_from_model` makes of it."""

    def __init__(self, returned: str = "text") -> None:
        self.returned = returned
        self.reset()

    def reset(self) -> None:
        self.heard: list[tuple[Any, float, bool]] = []
        self._trajectory = Trajectory()

    def update_from_env(
        self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any
    ) -> None:
        self.heard.append((observation, reward, done))
        if self._trajectory.steps:
            self._trajectory.steps[-1].reward += reward

    def update_from_model(self, response: str, **kwargs: Any) -> Any:
        self._trajectory.steps.append(Step(model_response=response, action=response))
        return {"text": response, "object": Action(response), "none": None}[self.returned]

    @property
    def chat_completions(self) -> list[Message]:
        return [{"role": "user", "content": str(self.heard[-1][0])}]

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory


class Countdown(BaseEnv):
    """Ends when the observation is 0; the action is subtracted from it."""

    def __init__(self, start: int = 3, values: int = 5, cut: int = 99) -> None:
        self.left, self.values, self.cut, self.closed = start, values, cut, 0

    def reset(self) -> tuple[int, dict[str, Any]]:
        return self.left, {}

    def step(self, action: Any) -> Any:
        self.left -= int(action)
        self.cut -= 1
        ended: tuple[bool, ...] = (self.left <= 0, self.cut <= 0)
        return (self.left, 0.5, *ended[: self.values - 3], {})

    def close(self) -> None:
        self.closed += 1

    @classmethod
    def from_dict(cls, env_args: dict[str, Any]) -> "Countdown":
        return cls(env_args["input"])


class Talk(BaseEnv):
    """Two agents say a word each; at the end both are rewarded."""

    def __init__(self, first: Any = "ann", reward: Any = None) -> None:
        self.first, self.reward, self.words = first, reward, list[str]()

    def reset(self) -> tuple[str, dict[str, Any]]:
        return "begin", {"agent": self.first}

    def step(self, action: Any) -> Any:
        self.words.append(action)
        done = len(self.words) == 4
        reward = {"ann": 1.0, "bob": -1.0} if done else 0.25
        following = "bob" if len(self.words) % 2 else "ann"
        return action, self.reward or reward, done, False, {"agent": following}

    @classmethod
    def from_dict(cls, env_args: dict[str, Any]) -> "Talk":
        return cls()


@pytest.mark.parametrize("returned", ["text", "object", "none"])
@pytest.mark.parametrize("values", [4, 5])
def test_agents_and_environments_of_rllm_and_gymnasium_run(returned: str, values: int) -> None:
    player, env = Player(returned), Countdown(values=values)
    episode = run_episode(player, env, lambda messages: "1")
    assert player.heard == [(3, 0.0, False), (2, 0.5, False), (1, 0.5, False), (0, 0.5, True)]
    assert (episode.reward, episode.end, episode.steps, env.closed) == (1.5, "terminated", 3, 1)


def test_an_environment_may_cut_an_episode() -> None:
    player = Player()
    episode = run_episode(player, Countdown(cut=2), lambda messages: "1")
    assert (episode.end, episode.steps, player.heard[-1][2]) == ("truncated", 2, True)


def test_an_episode_without_an_end_is_cut() -> None:
    episode = run_episode(Player(), Countdown(), lambda messages: "0", max_steps=4)
    assert (episode.end, episode.steps) == ("max_steps", 4)


def test_several_agents_share_an_environment() -> None:
    ann, bob = Player(), Player()
    models = {"ann": lambda messages: "a", "bob": lambda messages: "b"}
    env = Talk()
    episode = run_episode({"ann": ann, "bob": bob}, env, models)
    assert env.words == ["a", "b", "a", "b"]
    assert ann.heard == [("begin", 0.0, False), ("b", 0.25, False), ("b", 1.25, True)]
    assert bob.heard == [("a", 0.0, False), ("a", 0.25, False), ("b", -1.0, True)]
    result = episode.as_result()
    assert result["rewards"] == {"ann": 1.5, "bob": -0.75}
    assert episode_reward({}, result) == {"reward": 0.75, "reward.ann": 1.5, "reward.bob": -0.75}


def test_an_agent_that_never_acted_keeps_its_reward() -> None:
    class Forfeit(Talk):
        def step(self, action: Any) -> Any:
            return "over", {"ann": -1.0, "bob": 1.0}, True, False, {}

    ann, bob = Player(), Player()
    episode = run_episode({"ann": ann, "bob": bob}, Forfeit(), lambda messages: "?")
    assert episode.rewards == {"ann": -1.0, "bob": 1.0}
    assert bob.heard == []


def test_an_agent_needs_no_base_class() -> None:
    class Foreign:
        """An agent of rLLM, which overwrites the reward of its last step."""

        def __init__(self) -> None:
            self.trajectory, self.chat_completions = Trajectory(), list[Message]()

        def reset(self) -> None:
            pass

        def update_from_env(self, observation: Any, reward: float, done: bool, info: Any) -> None:
            if self.trajectory.steps:
                self.trajectory.steps[-1].reward = reward

        def update_from_model(self, response: str) -> Action:
            self.trajectory.steps.append(Step(action=response))
            return Action(response)

    foreign: Any = Foreign()
    episode = run_episode(foreign, Countdown(values=4), lambda messages: "1")
    assert episode.rewards == {"Foreign": 1.5}
    assert [step.reward for step in foreign.trajectory.steps] == [0.5, 0.5, 0.5]


def test_one_agent_has_one_reward() -> None:
    episode = run_episode(Player(), Countdown(), lambda messages: "3")
    assert episode_reward({}, episode.as_result()) == {"reward": 0.5}


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (Talk(first="eve"), "Talk names 'eve' as the next agent"),
        (Talk(first=None), "Talk names None as the next agent"),
        (Talk(reward={"eve": 1.0}), "Talk rewards 'eve', which is no agent"),
        (Talk(reward="high"), "Talk returned the reward 'high'"),
        (Talk(reward=float("nan")), "Talk returned the reward nan"),
    ],
)
def test_a_bad_environment_is_named(env: BaseEnv, says: str) -> None:
    with pytest.raises(BadEnvironment, match=says):
        run_episode({"ann": Player(), "bob": Player()}, env, lambda messages: "a")


def test_an_environment_that_fails_is_closed() -> None:
    env = Countdown()
    with pytest.raises(ValueError, match="invalid literal"):
        run_episode(Player(), env, lambda messages: "no number")
    assert env.closed == 1
