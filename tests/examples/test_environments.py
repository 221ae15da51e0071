"""The environments of Gymnasium and TextArena as they are in examples/environments."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ltrain_episodes import Message, TextAgent, run_episode

EXAMPLES = Path(__file__).parents[2] / "examples" / "environments"


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])


class Replies:
    """A model that says its replies one after the other."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.requests = list(replies), list[Sequence[Message]]()

    def __call__(self, messages: Sequence[Message]) -> str:
        self.requests.append(list(messages))
        return self.replies.pop(0)


def tasks(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("way", "reward"),
    [("down down right right down right", 1.0), ("down right", 0.0), ("nonsense " * 16, 0.0)],
)
def test_a_walker_reaches_the_goal_or_falls_into_a_hole(way: str, reward: float) -> None:
    import frozen_lake

    replies = Replies(*way.split())
    (open_lake, _) = tasks("lakes.jsonl")
    lake = frozen_lake.lake(open_lake)
    episode = run_episode(frozen_lake.walker(), lake, replies, max_steps=16)
    assert (episode.reward, episode.steps) == (reward, len(way.split()))
    assert replies.requests[0][-1]["content"] == "You are in row 0, column 0. Which way?"


def test_every_lake_has_a_way() -> None:
    import frozen_lake

    ways = {
        "open": "down down right right down right",
        "narrow": "down right down right down right",
    }
    for task in tasks("lakes.jsonl"):
        replies = Replies(*ways[task["id"]].split())
        assert run_episode(frozen_lake.walker(), frozen_lake.lake(task), replies).reward == 1.0


def test_two_agents_play_one_game() -> None:
    import tic_tac_toe

    (task,) = tasks("games.jsonl")
    nought, cross = TextAgent(), TextAgent()
    moves = Replies("[0]", "[3]", "[1]", "[4]", "[2]")
    game = tic_tac_toe.Game.from_dict(task)
    episode = run_episode({"nought": nought, "cross": cross}, game, moves)
    assert episode.as_result()["rewards"] == {"nought": 1.0, "cross": -1.0}
    assert [len(agent.trajectory.steps) for agent in (nought, cross)] == [3, 2]
    assert "You are Player 1" in moves.requests[1][0]["content"]
