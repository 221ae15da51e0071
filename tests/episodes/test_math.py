"""The agent and the environment of mathematics problems, and their self-correction."""

from collections.abc import Sequence

import pytest

from ltrain_episodes import MathAgent, MathEnv, Message, RewardOutput, run_episode

TASK = {"question": "What is 2 + 2?", "answer": "4"}


class Model:
    """Answers with the next of its responses, and keeps what it was requests."""

    def __init__(self, *responses: str) -> None:
        self.responses, self.requests = list(responses), list[list[Message]]()

    def __call__(self, messages: Sequence[Message]) -> str:
        self.requests.append(list(messages))
        return self.responses.pop(0)


def test_a_wrong_answer_is_corrected() -> None:
    model = Model(r"\boxed{5}", r"\boxed{4}")
    episode = run_episode(MathAgent(), MathEnv(TASK), model)
    assert (episode.reward, episode.end, episode.steps) == (1.0, "terminated", 2)
    first, second = episode.trajectories["MathAgent"].steps
    assert (first.reward, first.done, first.info["is_correct"]) == (0.0, False, False)
    assert (second.reward, second.done, second.model_response) == (1.0, True, r"\boxed{4}")
    assert first.observation == {"question": "What is 2 + 2?"}
    assert [message["role"] for message in model.requests[1]] == ["user", "assistant", "user"]
    assert model.requests[0][0]["content"] == f"What is 2 + 2? {MathAgent.INSTRUCTION}"
    assert model.requests[1][2]["content"] == MathAgent.CORRECTION
    assert second.chat_completions[-1] == {"role": "assistant", "content": r"\boxed{4}"}


def test_a_right_answer_ends_the_episode() -> None:
    episode = run_episode(MathAgent(), MathEnv(TASK), Model(r"\boxed{4}"))
    assert (episode.reward, episode.steps) == (1.0, 1)


@pytest.mark.parametrize("attempts", [1, 3])
def test_the_last_attempt_ends_the_episode(attempts: int) -> None:
    env = MathEnv.from_dict({**TASK, "max_attempts": attempts})
    episode = run_episode(MathAgent(), env, Model(*["no idea"] * attempts))
    assert (episode.reward, episode.end, episode.steps) == (0.0, "terminated", attempts)


@pytest.mark.parametrize("accumulate", [True, False])
def test_earlier_thinking_is_kept_or_left_out(accumulate: bool) -> None:
    responses = ["<think>hm\nwell</think> first", r"<think>now</think> \boxed{4}"]
    model = Model(*responses)
    episode = run_episode(MathAgent(accumulate_thinking=accumulate), MathEnv(TASK), model)
    assert model.requests[1][1]["content"] == (responses[0] if accumulate else "first")
    steps = episode.trajectories["MathAgent"].steps
    assert steps[1].chat_completions[-1]["content"] == responses[1]
    assert steps[0].model_response == responses[0]


def test_a_second_episode_begins_anew() -> None:
    agent, env = MathAgent(), MathEnv(TASK)
    run_episode(agent, env, Model("?", "?"))
    episode = run_episode(agent, env, Model(r"\boxed{4}"))
    assert (episode.reward, episode.steps, len(agent.chat_completions)) == (1.0, 1, 2)


def test_another_reward_function_judges() -> None:
    env = MathEnv(TASK, reward_fn=lambda task, action: RewardOutput(0.25, False))
    assert run_episode(MathAgent(), env, Model("short")).reward == 0.25


def test_the_judge_of_a_wrong_answer_may_give_feedback() -> None:
    def judge(task: object, action: str) -> RewardOutput:
        return RewardOutput(float(action == "4"), action == "4", {"feedback": "Too high."})

    model = Model("5", "4")
    episode = run_episode(MathAgent(), MathEnv(TASK, reward_fn=judge), model)
    assert model.requests[1][2]["content"] == f"Too high. {MathAgent.CORRECTION}"
    assert episode.trajectories["MathAgent"].steps[1].observation == "Too high."


def test_worked_examples_are_the_first_turns_of_each_episode() -> None:
    examples: list[Message] = [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": r"<think>.</think>\boxed{2}"},
    ]
    agent, model = MathAgent(examples=examples), Model(r"\boxed{4}", r"\boxed{4}")
    for _ in range(2):
        run_episode(agent, MathEnv(TASK), model)
    assert [request[:-1] for request in model.requests] == [examples] * 2
    assert len(agent.trajectory.steps) == 1


def test_the_input_of_a_task_is_the_question() -> None:
    assert MathEnv.from_dict({"input": "1 + 1", "gold": 2}).reset()[0] == {"question": "1 + 1"}
    with pytest.raises(KeyError, match="input"):
        MathEnv.from_dict({"gold": 2})
    with pytest.raises(ValueError, match="at least 1 answer"):
        MathEnv(TASK, max_attempts=0)
