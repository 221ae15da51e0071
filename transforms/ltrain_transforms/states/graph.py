"""A graph's state: what its nodes are shown, and which of them wrote what is new.

A graph's state is seen at each node's input; what differs from the input of the node before was
written between the two. Outputs are not used for values: with one string key they lose the key.
The graph's own output is the state that the last node left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ltrain_transforms.states.step import Step
from ltrain_transforms.states.values import opened
from ltrain_transforms.untrusted import parsed

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
    before: Sequence[Step] = ()
    """Those that ran until then: of parallel ones, some are shown what others will not see."""

    def writer(self, key: str, value: Any) -> str | None:
        """Give the node whose output names the key, or is the value; else the last that ran."""
        if len(self.ended) == 1 and not self.before:
            return self.ended[0].call_id
        for node in (*self.ended, *reversed(self.before)):
            output = opened(parsed(node.output))
            if output == value or (isinstance(output, dict) and key in output):
                return node.call_id
        return self.ended[-1].call_id if self.ended else None


@dataclass(slots=True)
class _Scope:
    """One graph: its nodes that are running, and those that ended since the last snapshot."""

    running: list[Step] = field(default_factory=list)
    ended: list[Step] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)

    def at(self, start: int) -> None:
        self.ended += [node for node in self.running if node.end <= start]
        self.running = [node for node in self.running if node.end > start]


class Graph:
    """The graphs of one execution."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._held = {step.call_id: step for step in steps if step.kind in HOLDERS}
        self.nodes = {call: step for call, step in self._held.items() if self._is_node(step)}
        self.wholes = self._whole()
        """The calls that are graphs, with what their nodes call them."""
        self._scopes: dict[str | None, _Scope] = {}
        self._prefixes: dict[str | None, str] = {}

    @property
    def speaks(self) -> bool:
        """Say whether any node's input is a state."""
        return any((node.input or "").startswith("{") for node in self.nodes.values())

    def _is_node(self, step: Step) -> bool:
        """A node of the graph itself, not a runnable inside of it."""
        # traceloop's name of the span begins with the operation's
        if step.kind == "tool" or step.name not in (step.node, f"execute_task {step.node}"):
            return False
        above = self._held.get(step.parent_id or "")
        return above is None or above.name != step.name or above.node != step.node

    def at(self, node: Step) -> Shown | None:
        """Give the state that a node is shown."""
        scope = self._scopes.setdefault(node.parent_id, _Scope())
        scope.at(node.start)
        values, ended = opened(parsed(node.input)), scope.ended
        scope.running.append(node)
        if not isinstance(values, dict):
            return None
        before = list(scope.before)
        scope.ended, scope.before = [], [*before, *ended]
        return Shown(self._prefix(node.parent_id), values, ended, before)

    def left(self, whole: Step) -> Shown | None:
        """Give the state that a graph left."""
        graph = self.wholes[whole.call_id]
        scope, values = self._scopes.get(graph, _Scope()), opened(parsed(whole.output))
        if not isinstance(values, dict):
            return None
        ended, scope.ended = [*scope.ended, *scope.running], []
        return Shown(self._prefix(graph), values, ended, scope.before)

    def _whole(self) -> dict[str, str | None]:
        """Give the calls that are graphs; of nodes that lie in none, the first that is no node."""
        named = {node.parent_id for node in self.nodes.values()}
        wholes: dict[str, str | None] = {
            graph: graph
            for graph in named
            if graph in self._held and self._held[graph].kind != "tool"
        }
        if None in named:
            first = min(node.start for node in self.nodes.values())
            others = (step for call, step in self._held.items() if call not in self.nodes)
            above = next((step for step in others if step.start <= first), None)
            if above is not None:
                wholes.setdefault(above.call_id, None)
        return wholes

    def _prefix(self, graph: str | None) -> str:
        """Name the node or tool that holds a graph."""
        if graph not in self._prefixes:
            at, seen = self._held.get(graph or ""), set[str]()
            while at is not None and at.call_id not in self.nodes and at.kind != "tool":
                seen.add(at.call_id)
                above = at.parent_id or ""
                at = self._held.get(above) if above not in seen else None
            self._prefixes[graph] = (
                f"{at.node if at.kind != 'tool' else at.name}." if at is not None else ""
            )
        return self._prefixes[graph]
