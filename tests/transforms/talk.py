"""Calls with literal tokens, as the frames that `samples` reads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ltrain_transforms.recipe import Recipe
from ltrain_transforms.samples import samples
from ltrain_transforms.tables import CALLS, EXECUTIONS, TRANSITIONS, Table

Message = dict[str, Any]


def message(role: str, text: str, *parts: Message) -> Message:
    return {"role": role, "parts": [{"type": "text", "content": text}, *parts]}


def recipe(**more: Any) -> Recipe:
    answer = {"name": "answer", "evaluation": "reward"}
    return Recipe.model_validate({"policy": [{"name": "sql"}], "reward": [answer], **more})


@dataclass
class Talk:
    """Calls in order; every log-probability is -0.5."""

    calls: list[dict[str, Any]] = field(default_factory=list)

    def call(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        *,
        messages: Sequence[Message] | None = None,
        answer: Message | None = None,
        execution: str = "e1",
        **cells: Any,
    ) -> str:
        """Add a call; `cells` are of `CALLS` and `TRANSITIONS`."""
        number = len(self.calls)
        self.calls.append(
            {
                "execution_id": execution,
                "call_id": f"c{number}",
                "t": number,
                "kind": "llm",
                "policy": "sql",
                "policy_version": 0,
                "group_id": "g1",
                "temperature": 1.0,
                "prompt_token_ids": list(prompt),
                "response_token_ids": [list(response)],
                "response_logprobs": [[-0.5] * len(response)],
                "input": None if messages is None else json.dumps(messages),
                "output": None if answer is None else json.dumps([answer]),
                "advantage": float(number + 1),
                "reward": -float(number),
                "constrained": False,
                "delivered": True,
                "redacted": False,
                "truncated": False,
                **cells,
            }
        )
        return f"c{number}"

    def frames(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return `TRANSITIONS`, `CALLS` and `EXECUTIONS`."""
        ids = dict.fromkeys(call["execution_id"] for call in self.calls)
        executions = [
            {"execution_id": one, "rollout_id": f"rollout-{one}", "mode": "train"} for one in ids
        ]
        return (
            _frame(TRANSITIONS, self.calls),
            _frame(CALLS, self.calls),
            _frame(EXECUTIONS, executions),
        )

    def samples(self, recipe_: Recipe | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
        return samples(recipe_ or recipe(), *self.frames())

    def rows(self, **more: Any) -> list[list[str]]:
        """Return the calls of each row, in the order in which the rows begin."""
        return self.samples(recipe(**more))[0]["transition_ids"].to_list()


def _frame(table: Table, rows: list[dict[str, Any]]) -> pl.DataFrame:
    cells = [{name: row.get(name) for name in table.schema} for row in rows]
    return pl.DataFrame(cells, table.schema)
