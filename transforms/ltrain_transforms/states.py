"""Calls -> states: which semantic variable was written when, and who read it.

A graph's state is seen at each node's input; what differs from the input of the node before was
written between the two. Outputs are not used for values: with one string key they lose the key.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from typing import Any

import polars as pl

from ltrain_transforms.spans import parsed
from ltrain_transforms.tables import STATES

SHORTEST = 3
"""Characters below which a value that occurs in a prompt says nothing."""


SEEN = pl.Schema(
    {"call_id": pl.String(), "reads": pl.List(pl.String()), "state_digest": pl.String()}
)


@dataclass(slots=True)
class _Walk:
    """The state of one execution, call by call."""

    execution_id: str
    values: dict[str, str] = field(default_factory=dict)
    """JSON by variable."""
    ended: list[dict[str, Any]] = field(default_factory=list)
    """Nodes since the last snapshot."""
    rows: list[tuple[object, ...]] = field(default_factory=list)
    reads: dict[str, list[str]] = field(default_factory=dict)
    digests: dict[str, str | None] = field(default_factory=dict)

    def see(self, call: dict[str, Any], snapshot: dict[str, Any]) -> None:
        """Compare a snapshot with what was known, and attribute the differences."""
        for variable, value in snapshot.items():
            text = json.dumps(value, sort_keys=True, ensure_ascii=False)
            if self.values.get(variable) != text:
                writer = self._writer(variable)
                t, name = (
                    (call["seq"], None) if writer is None else (writer["seq"], writer["call_id"])
                )
                self.rows.append((self.execution_id, t, variable, text, _digest(text), name))
                self.values[variable] = text
        self.ended = []

    def _writer(self, variable: str) -> dict[str, Any] | None:
        """Among nodes that ran since, the one whose output names the variable, else the last."""
        for node in self.ended:
            output = parsed(node["output"])
            if isinstance(output, dict) and variable in output:
                return node
        return self.ended[-1] if self.ended else None

    def read(self, call: dict[str, Any]) -> None:
        """Note what an LLM call or a tool saw of the state."""
        text = call["input"] or ""
        self.reads[call["call_id"]] = [
            variable
            for variable, value in self.values.items()
            if len(inner := _inner(value)) >= SHORTEST and inner in text
        ]
        whole = json.dumps(self.values, sort_keys=True) if self.values else call["input"]
        self.digests[call["call_id"]] = None if whole is None else _digest(whole)


def states(calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give `states`, and what each call saw: `call_id`, `reads`, `state_digest`."""
    columns = (
        "execution_id",
        "call_id",
        "seq",
        "kind",
        "name",
        "node",
        "start",
        "end",
        "input",
        "output",
    )
    rows = calls.sort("execution_id", "seq").select(columns).iter_rows(named=True)
    walks = [
        _walk(execution, list(members))
        for execution, members in groupby(rows, key=lambda row: row["execution_id"])
    ]
    written = [row for walk in walks for row in walk.rows]
    seen = [
        (call, reads, walk.digests[call]) for walk in walks for call, reads in walk.reads.items()
    ]
    return (
        pl.DataFrame(written, STATES.schema, orient="row"),
        pl.DataFrame(seen, SEEN, orient="row"),
    )


def _walk(execution_id: str, calls: Sequence[dict[str, Any]]) -> _Walk:
    walk = _Walk(execution_id)
    open_nodes: list[dict[str, Any]] = []
    for call in calls:
        if _is_node(call):
            walk.ended += [node for node in open_nodes if node["end"] <= call["start"]]
            open_nodes = [node for node in open_nodes if node["end"] > call["start"]]
            snapshot = parsed(call["input"])
            if isinstance(snapshot, dict):
                walk.see(call, snapshot)
            open_nodes.append(call)
        elif call["kind"] in ("llm", "tool", "retrieval"):
            walk.read(call)
    walk.ended += open_nodes
    for call, final in _finals(calls):
        walk.see(call, final)
    return walk


def _is_node(call: dict[str, Any]) -> bool:
    """A node of the graph itself, not a runnable inside of it."""
    return call["kind"] in ("node", "agent") and call["node"] == call["name"]


def _finals(calls: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The graph's own output is the state that the last node left."""
    graphs = [c for c in calls if c["kind"] in ("node", "agent") and not _is_node(c)]
    known = {c["seq"] for c in calls if _is_node(c)}
    outer = graphs[0] if graphs and known else None
    output = parsed(outer["output"]) if outer is not None else None
    if outer is not None and isinstance(output, dict):
        yield outer, output


def _inner(text: str) -> str:
    """A value as it occurs inside JSON text: without its own quotes."""
    return text[1:-1] if text.startswith('"') else text


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
