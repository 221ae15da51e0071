"""Episodes as agents: mathematics with a second attempt, and two agents that share a game."""

from typing import Any, Self

from ltrain_episodes import BaseEnv, MathAgent, MathEnv, solve_with

solve = solve_with(MathAgent, MathEnv, max_tokens=64)


class Relay(BaseEnv):
    """Two agents answer the same question, one after the other."""

    def __init__(self, question: str) -> None:
        self.question, self.turns = question, 0

    def reset(self) -> tuple[dict[str, str], dict[str, str]]:
        return {"question": self.question}, {"agent": "first"}

    def step(self, action: Any) -> Any:
        self.turns += 1
        reward = float(self.turns)
        return {"question": "now you"}, reward, self.turns == 2, False, {"agent": "second"}

    @classmethod
    def from_dict(cls, env_args: dict[str, Any]) -> Self:
        return cls(env_args["input"])


relay = solve_with({"first": MathAgent, "second": MathAgent}, Relay)


class Broken(Relay):
    """Fails on the first step."""

    def step(self, action: Any) -> Any:
        raise RuntimeError("the board fell over")


broken = solve_with(MathAgent, Broken)
