"""Waves of executions with literal calls and rewards: the inputs of credit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ltrain_transforms.credit import (
    credit_inputs,
    outcome_advantages,
    select_groups,
    transitions,
)
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.tables import CALLS, EXECUTIONS, REWARDS


@dataclass(frozen=True, slots=True)
class Called:
    """One call; those of an execution are in order."""

    agent: str = "writer"
    reward: float = 0.0
    state: str | None = None
    kind: str = "llm"
    parent: int | None = None
    """Index of the call that encloses it."""
    tokens: int | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """Other columns of `calls`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution."""

    outcome: float | dict[str, float]
    calls: Sequence[Called] = (Called(),)
    task: str | None = "t"
    mode: str = "train"


@dataclass(frozen=True, slots=True)
class Wave:
    executions: pl.DataFrame
    calls: pl.DataFrame
    rewards: pl.DataFrame
    outcomes: pl.DataFrame

    @classmethod
    def of(cls, *runs: Run) -> "Wave":
        """Return executions e0, e1, … with calls e0.0, e0.1, …; each ends after the one before."""
        executions = [_execution(f"e{n}", n, run) for n, run in enumerate(runs)]
        calls = [
            _call(f"e{n}", k, c) for n, run in enumerate(runs) for k, c in enumerate(run.calls)
        ]
        rewards = [row for n, run in enumerate(runs) for row in _rewards(f"e{n}", run)]
        outcomes = [
            {"execution_id": f"e{n}", "reward": sum(_parts(run).values())}
            for n, run in enumerate(runs)
        ]
        return cls(
            _table(EXECUTIONS.schema, executions),
            _table({**CALLS.schema, "state_digest": pl.String()}, calls),
            _table(REWARDS.schema, rewards),
            _table({"execution_id": pl.String(), "reward": pl.Float64()}, outcomes),
        )

    def credited(self, recipe: Recipe) -> "CreditedWave":
        calls = credit_inputs(recipe, self.calls, self.executions)
        ranked = outcome_advantages(recipe, self.executions, self.outcomes, self.rewards, calls)
        rows = transitions(recipe, ranked, calls, self.rewards)
        selected, drops = select_groups(recipe, ranked, rows)
        return CreditedWave(
            ranked, rows, sorted(selected), dict(drops.select("id", "reason").iter_rows())
        )


@dataclass(frozen=True, slots=True)
class CreditedWave:
    compared: pl.DataFrame
    transitions: pl.DataFrame
    selected: list[str]
    drops: dict[str, str]

    def column(self, name: str) -> dict[str, Any]:
        """Return a column of the transitions by call, sorted by call."""
        return dict(self.transitions.sort("call_id").select("call_id", name).iter_rows())


def recipe(credit: dict[str, Any] | None = None, **more: Any) -> Recipe:
    """Return a recipe of one policy whose outcome is the evaluation `reward`."""
    keys = {
        "policy": [{"name": "sql"}],
        "reward": [{"name": "answer", "evaluation": "reward"}],
        "credit": credit or {},
    }
    return Recipe.model_validate(keys | more)


def _parts(run: Run) -> dict[str, float]:
    return run.outcome if isinstance(run.outcome, dict) else {"answer": run.outcome}


def _execution(name: str, number: int, run: Run) -> dict[str, Any]:
    group = None if run.task is None else f"run/{run.mode}/0/{run.task}"
    return {
        "execution_id": name, "group_id": group, "task_id": run.task, "run_id": "run",
        "mode": run.mode, "start": number, "end": number + 1, "outcome": "ok",
    }  # fmt: skip


def _call(execution: str, seq: int, call: Called) -> dict[str, Any]:
    parent = None if call.parent is None else f"{execution}.{call.parent}"
    return {
        "execution_id": execution, "call_id": f"{execution}.{seq}", "parent_id": parent, "seq": seq,
        "kind": call.kind, "agent": call.agent, "state_digest": call.state,
        "output_tokens": call.tokens, **call.more,
    }  # fmt: skip


def _rewards(execution: str, run: Run) -> list[dict[str, Any]]:
    of_execution: list[dict[str, Any]] = [
        {"rule": rule, "value": value, "call_id": None} for rule, value in _parts(run).items()
    ]
    of_calls: list[dict[str, Any]] = [
        {"rule": "rule", "value": call.reward, "call_id": f"{execution}.{seq}"}
        for seq, call in enumerate(run.calls)
        if call.reward
    ]
    return [
        {"execution_id": execution, "source": "runner", **row} for row in [*of_execution, *of_calls]
    ]


def _table(schema: Any, rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema)
