"""TextArena's tic-tac-toe: two agents play each other in one environment.

Run `ltrain rollout games.jsonl --agent tic_tac_toe:solve --reward ltrain_episodes:episode_reward`.
In a recipe, `agents = ["cross"]` under `[[policy]]` trains one of the two.
"""

from typing import Any, Self

import textarena

from ltrain_episodes import BaseEnv, TextAgent, solve_with

PLAYERS = ("nought", "cross")


class Game(BaseEnv):
    """A game of TextArena between the agents named `PLAYERS`."""

    def __init__(self, game: str) -> None:
        self._game = textarena.make(game)

    def reset(self) -> tuple[str, dict[str, Any]]:
        self._game.reset(num_players=len(PLAYERS))
        return self._observe()

    def step(self, action: str) -> tuple[str, dict[str, float], bool, bool, dict[str, Any]]:
        done, _ = self._game.step(action)
        if not done:
            observation, info = self._observe()
            return observation, {}, False, False, info
        rewards, info = self._game.close()
        named = {PLAYERS[player]: float(reward) for player, reward in rewards.items()}
        return "The game is over.", named, True, False, {"players": info}

    @classmethod
    def from_dict(cls, env_args: dict[str, Any]) -> Self:
        return cls(env_args["input"])

    def _observe(self) -> tuple[str, dict[str, Any]]:
        player, text = self._game.get_observation()
        return text, {"agent": PLAYERS[player]}


solve = solve_with(dict.fromkeys(PLAYERS, TextAgent), Game, max_tokens=8)
