"""Gymnasium's frozen lake: the agent walks to the goal without falling into a hole.

Run `ltrain rollout lakes.jsonl --agent frozen_lake:solve --reward ltrain_episodes:episode_reward`.
"""

from typing import Any

import gymnasium

from ltrain_episodes import TextAgent, solve_with

MOVES = ("left", "down", "right", "up")


class Walker(TextAgent):
    """Is told its field, and answers with a direction."""

    def write_observation(self, observation: Any, info: dict[str, Any]) -> str:
        return f"You are in row {observation // 4}, column {observation % 4}. Which way?"

    def read_action(self, response: str) -> int:
        words = response.lower().split()
        return next((MOVES.index(word) for word in words if word in MOVES), 0)


def walker() -> Walker:
    return Walker(f"Walk from row 0, column 0 to row 3, column 3. Say one of {', '.join(MOVES)}.")


def lake(task: dict[str, Any]) -> gymnasium.Env[int, int]:
    """Return the lake of a task, whose input is the map, such as "SFFF FHFH FFFH HFFG"."""
    return gymnasium.make("FrozenLake-v1", desc=task["input"].split(), is_slippery=False)


solve = solve_with(walker, lake, max_steps=16, max_tokens=8)
