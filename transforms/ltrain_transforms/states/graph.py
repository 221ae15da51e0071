"""A graph's state: what its nodes are shown, and which of them wrote what is new.

A graph's state is seen at each node's input; what differs from the input of the node before was
written between the two. Outputs are not used for values: with one string key they lose the key.
The graph's own output is the state that the last node left.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ltrain_transforms.states.step import Step
from ltrain_transforms.states.values import load

HOLDERS = ("node", "agent", "tool")
"""Kinds of calls that another call can lie in."""


@dataclass(slots=True)
class Shown:
    """A graph's state at one moment."""

    prefix: str
    """Of a graph inside another's node or in a tool, its name and a dot."""
    values: dict[str, Any]
    ended: Sequence[Step]
    """The nodes that ran since the last snapshot."""

    def writer(self, key: str) -> str | None:
        """Among nodes that ran since, the one whose output names the key, else the last."""
        if len(self.ended) > 1:
            for node in self.ended:
                output = load(node.output)
                if isinstance(output, dict) and key in output:
                    return node.call_id
        return self.ended[-1].call_id if self.ended else None


@dataclass(slots=True)
class _Scope:
    """One graph: its nodes that are running, and those that ended since the last snapshot."""

    running: list[Step] = field(default_factory=list)
    ended: list[Step] = field(default_factory=list)

    def at(self, start: int) -> None:
        self.ended += [node for node in self.running if node.end <= start]
        self.running = [node for node in self.running if node.end > start]


class Graph:
    """The graphs of one execution."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._held = {step.call_id: step for step in steps if step.kind in HOLDERS}
        self.nodes = {call: step for call, step in self._held.items() if self._is_node(step)}
        self._scopes: dict[str | None, _Scope] = {}
        self._prefixes: dict[str | None, str] = {}

    @property
    def speaks(self) -> bool:
        """Say whether any node's input is a state."""
        return any((node.input or "").startswith("{") for node in self.nodes.values())

    def _is_node(self, step: Step) -> bool:
        """A node of the graph itself, not a runnable inside of it."""
        if step.kind == "tool" or step.node != step.name:
            return False
        above = self._held.get(step.parent_id or "")
        return above is None or above.name != step.name or above.node != step.node

    def at(self, node: Step) -> Shown | None:
        """Give the state that a node is shown."""
        scope = self._scopes.setdefault(node.parent_id, _Scope())
        scope.at(node.start)
        values, ended = load(node.input), scope.ended
        scope.running.append(node)
        if not isinstance(values, dict):
            return None
        scope.ended = []
        return Shown(self._prefix(node.parent_id), values, ended)

    def left(self) -> Iterator[tuple[Step, Shown]]:
        """Give each graph that has an output, with the state in it."""
        for graph, scope in self._scopes.items():
            whole = self._held.get(graph) if graph is not None else self._outermost()
            values = load(whole.output) if whole is not None and whole.kind != "tool" else None
            if whole is not None and isinstance(values, dict):
                ended = [*scope.ended, *scope.running]
                yield whole, Shown(self._prefix(graph), values, ended)

    def _outermost(self) -> Step | None:
        """Find the graph of nodes that name none: the first that is no node, before all nodes."""
        first = min(node.start for node in self.nodes.values())
        calls = (step for step in self._held.values() if step.call_id not in self.nodes)
        return next((step for step in calls if step.start <= first), None)

    def _prefix(self, graph: str | None) -> str:
        """Name the node or tool that holds a graph."""
        if graph not in self._prefixes:
            at, seen = self._held.get(graph or ""), set[str]()
            while at is not None and at.call_id not in self.nodes and at.kind != "tool":
                seen.add(at.call_id)
                above = at.parent_id or ""
                at = self._held.get(above) if above not in seen else None
            self._prefixes[graph] = f"{at.name}." if at is not None else ""
        return self._prefixes[graph]
