"""The state of a graph: what each node finds, and which node wrote each change.

A node's input is the graph's state at that moment. What differs from the previous node's input was
written between the two. Outputs are not read as values: an output with a single string key lost
that key. The graph's own output is the state after its last node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ltrain_transforms.states.snapshots import CallRecord
from ltrain_transforms.states.values import unwrap_payload
from ltrain_transforms.traces import parse_json

CONTAINERS = ("node", "agent", "tool")
"""Kinds of calls that may enclose another call."""


@dataclass(slots=True)
class GraphState:
    """The state of a graph at one moment."""

    prefix: str
    """For a graph inside another graph's node or inside a tool: its name and a dot."""
    values: dict[str, Any]
    ended: Sequence[CallRecord]
    """The nodes that ended since the last snapshot."""
    before: Sequence[CallRecord] = ()
    """The nodes that ended earlier: a parallel node may find what the others do not."""

    def writer(self, key: str, value: Any) -> str | None:
        """Return the node whose output has the key or is the value; else the last that ended."""
        if len(self.ended) == 1 and not self.before:
            return self.ended[0].call_id
        for node in (*self.ended, *reversed(self.before)):
            output = unwrap_payload(parse_json(node.output))
            if output == value or (isinstance(output, dict) and key in output):
                return node.call_id
        return self.ended[-1].call_id if self.ended else None


@dataclass(slots=True)
class _Scope:
    """The nodes of one graph: those that run, and those that ended since the last snapshot."""

    running: list[CallRecord] = field(default_factory=list)
    ended: list[CallRecord] = field(default_factory=list)
    before: list[CallRecord] = field(default_factory=list)

    def advance(self, time: int) -> None:
        self.ended += [node for node in self.running if node.end <= time]
        self.running = [node for node in self.running if node.end > time]


class Graph:
    """The graphs of one execution."""

    def __init__(self, calls: Sequence[CallRecord]) -> None:
        self._containers = {call.call_id: call for call in calls if call.kind in CONTAINERS}
        self.nodes = {id: call for id, call in self._containers.items() if self._is_node(call)}
        self.graphs = self._graphs()
        """The calls that are graphs, with the parent id of their nodes."""
        self._scopes: dict[str | None, _Scope] = {}
        self._prefixes: dict[str | None, str] = {}

    @property
    def has_state(self) -> bool:
        """Whether any node's input is a state."""
        return any((node.input or "").startswith("{") for node in self.nodes.values())

    def _is_node(self, call: CallRecord) -> bool:
        """Return whether a call is a node of the graph, not a runnable inside a node."""
        # traceloop puts the operation's name before the node's
        if call.kind == "tool" or call.name not in (call.node, f"execute_task {call.node}"):
            return False
        parent = self._containers.get(call.parent_id or "")
        return parent is None or parent.name != call.name or parent.node != call.node

    def state_before(self, node: CallRecord) -> GraphState | None:
        """Return the state that a node finds; None where its input is not a state."""
        scope = self._scopes.setdefault(node.parent_id, _Scope())
        scope.advance(node.start)
        values, ended = unwrap_payload(parse_json(node.input)), scope.ended
        scope.running.append(node)
        if not isinstance(values, dict):
            return None
        before = list(scope.before)
        scope.ended, scope.before = [], [*before, *ended]
        return GraphState(self._prefix(node.parent_id), values, ended, before)

    def state_after(self, graph: CallRecord) -> GraphState | None:
        """Return the state after a graph's last node; None where its output is not a state."""
        parent = self.graphs[graph.call_id]
        scope = self._scopes.get(parent, _Scope())
        values = unwrap_payload(parse_json(graph.output))
        if not isinstance(values, dict):
            return None
        ended, scope.ended = [*scope.ended, *scope.running], []
        return GraphState(self._prefix(parent), values, ended, scope.before)

    def _graphs(self) -> dict[str, str | None]:
        """Return the calls that are graphs.

        Nodes without a parent belong to the first call that encloses them and is not a node.
        """
        parents = {node.parent_id for node in self.nodes.values()}
        graphs: dict[str, str | None] = {
            parent: parent
            for parent in parents
            if parent in self._containers and self._containers[parent].kind != "tool"
        }
        if None in parents:
            first = min(node.start for node in self.nodes.values())
            others = (call for id, call in self._containers.items() if id not in self.nodes)
            enclosing = next((call for call in others if call.start <= first), None)
            if enclosing is not None:
                graphs.setdefault(enclosing.call_id, None)
        return graphs

    def _prefix(self, graph: str | None) -> str:
        """Return the name of the node or tool that encloses a graph, and a dot."""
        if graph not in self._prefixes:
            call, visited = self._containers.get(graph or ""), set[str]()
            while call is not None and call.call_id not in self.nodes and call.kind != "tool":
                visited.add(call.call_id)
                parent = call.parent_id or ""
                call = self._containers.get(parent) if parent not in visited else None
            self._prefixes[graph] = (
                f"{call.node if call.kind != 'tool' else call.name}." if call is not None else ""
            )
        return self._prefixes[graph]
