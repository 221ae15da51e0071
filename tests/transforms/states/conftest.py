"""Build the calls of one execution by hand: the states depend on the calls alone."""

import json
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest

from ltrain_transforms.states.from_calls import states
from ltrain_transforms.tables import CALLS

MS = 1_000_000

Message = dict[str, Any]


def system(text: str) -> Message:
    return {"role": "system", "parts": [{"type": "text", "content": text}]}


def user(text: str) -> Message:
    return {"role": "user", "parts": [{"type": "text", "content": text}]}


def assistant(text: str = "", *prompt: dict[str, Any]) -> Message:
    texts = [{"type": "text", "content": text}] if text else []
    calls = [{"type": "tool_call", **one} for one in prompt]
    return {"role": "assistant", "parts": [*texts, *calls]}


def result(id: str, text: str) -> Message:
    part = {"type": "tool_call_response", "id": id, "response": text}
    return {"role": "tool", "parts": [part]}


@dataclass
class TraceBuilder:
    """The calls of one execution, one after the other unless `start` and `end` are set."""

    execution: str = "e"
    clock: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def call(self, kind: str, name: str, **cells: Any) -> str:
        """Add a call that lasts 10 ms, 5 ms after the one before; its id is its number."""
        begin = self.clock
        row = {"call_id": f"{self.execution}{len(self.rows)}", "kind": kind, "name": name}
        times = {"start": begin, "end": begin + 10 * MS}
        self.rows.append({"status": "ok", **row, **times, **cells})
        self.clock = max(self.clock, self.rows[-1]["end"]) + 5 * MS
        return str(self.rows[-1]["call_id"])

    def llm(self, prompt: list[Message], answer: Message | None, **cells: Any) -> str:
        messages = {"input": json.dumps(prompt), "output": answer and json.dumps([answer])}
        return self.call("llm", "model", **{**messages, **cells})

    def tool(self, name: str, arguments: Any, result: str | None, **cells: Any) -> str:
        return self.call("tool", name, input=json.dumps(arguments), output=result, **cells)

    def node(self, name: str, state: Any = None, **cells: Any) -> str:
        input = None if state is None else json.dumps(state)
        return self.call("node", name, **{"input": input, "node": name, "agent": name, **cells})

    @property
    def calls(self) -> pl.DataFrame:
        ordered = sorted(self.rows, key=lambda row: (row["start"], -row["end"]))
        numbered = [
            {**row, "seq": seq, "execution_id": self.execution} for seq, row in enumerate(ordered)
        ]
        columns = {name: [row.get(name) for row in numbered] for name in CALLS.schema}
        return pl.DataFrame(columns, CALLS.schema)

    @property
    def written(self) -> list[tuple[Any, ...]]:
        """Step, variable, value and writer of each row of `states`."""
        return states(self.calls)[0].select("t", "variable", "value", "written_by").rows()

    @property
    def actions(self) -> list[str | None]:
        """The action of each LLM call."""
        actions = dict(states(self.calls)[1].select("call_id", "action").iter_rows())
        llm = self.calls.filter(pl.col("kind") == "llm")
        return [actions[call] for call in llm["call_id"]]

    @property
    def reads(self) -> dict[str, list[str]]:
        """The variables that each call reads, by call id."""
        return dict(states(self.calls)[1].select("call_id", "reads").iter_rows())


@pytest.fixture
def trace() -> TraceBuilder:
    return TraceBuilder()
