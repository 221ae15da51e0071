"""Build the states of one execution, call by call: which variable is written, read, and by whom.

A write takes effect at the first call that starts after the writer has ended. So parallel calls
never see each other's writes, and the state at step t is the state that call t found.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from ltrain_transforms.states import names
from ltrain_transforms.states.contexts import SLACK, Component, Histories, Prompt, Rewrite
from ltrain_transforms.states.graph import Graph, GraphState
from ltrain_transforms.states.prompts import SEPARATOR, Turn, join_turns, parse_turns
from ltrain_transforms.states.snapshots import CallRecord, Observation
from ltrain_transforms.states.values import (
    last_text,
    parse_structured,
    search_texts,
    unwrap_payload,
    value_digest,
)
from ltrain_transforms.states.variables import PendingWrite, Variables
from ltrain_transforms.traces import parse_json


class StateBuilder:
    """Build the variables and observations of one execution; `calls` are ordered by `seq`.

    An index below is a position in `calls`; one past the last call is the final state.
    """

    def __init__(self, calls: Sequence[CallRecord]) -> None:
        self.calls = calls
        self.graph = Graph(calls)
        self.has_graph_state = self.graph.has_state
        self.variables = Variables(calls[0].execution_id)
        self.histories = Histories(hashes=not self.has_graph_state)
        self.observations: dict[str, Observation] = {}
        self._starts = list(accumulate((call.start for call in calls), max))
        self._pending: defaultdict[int, list[PendingWrite]] = defaultdict(list)
        self._ended_graphs: defaultdict[int, list[CallRecord]] = defaultdict(list)
        self._invocations = names.agent_invocations(calls)
        self._inputs_by_text = names.inputs_by_text(calls)
        tools = [call for call in calls if call.kind == "tool"]
        self._call_ids = {call.tool_call_id: call.call_id for call in tools if call.tool_call_id}
        self._traced_results = {call.tool_call_id for call in tools if call.output}
        self._first_tool: dict[str | None, int] = {}
        self._tool_names: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._answers: list[CallRecord] = []
        self._has_agents = any(names.agent_name(call) for call in calls if call.kind == "llm")
        self._awaits_input = True
        for index, call in enumerate(calls):
            if call.kind == "tool":
                self._first_tool.setdefault(call.requested_by, index)

    def build(self) -> None:
        """Fill `variables` and `observations`."""
        handlers: dict[str, Callable[[int, CallRecord], None]] = {
            "llm": self._llm,
            "tool": self._tool,
            "retrieval": self._retrieval,
            "embedding": self._embedding,
            "agent": self._container,
            "node": self._container,
        }
        for index, call in enumerate(self.calls):
            if index in self._pending or index in self._ended_graphs:
                self._write_pending(index)
            if call.kind in handlers:
                handlers[call.kind](index, call)
        self._write_pending(len(self.calls))
        self._write_final_answer()

    def _step(self, index: int) -> int:
        """Return the step number `t` of an index."""
        return self.calls[index].seq if index < len(self.calls) else self.calls[-1].seq + 1

    def _write_pending(self, index: int) -> None:
        """Write what takes effect at this index."""
        for write in sorted(self._pending.pop(index, ()), key=lambda write: write.at):
            self._write(index, write.variable, write.value, write.by, write.id, write.always)
        for graph in self._ended_graphs.pop(index, ()):
            state = self.graph.state_after(graph)
            if state is not None:
                self._write_graph_state(index, state)

    def _write(
        self,
        index: int,
        variable: str,
        value: Any,
        by: str | None,
        id: str | None = None,
        always: bool = False,
    ) -> None:
        self.variables.write(self._step(index), variable, value, by, id=id, always=always)

    def _effective_index(self, index: int, call: CallRecord) -> int:
        """Return the first call that starts after `call` has ended, or that it requested."""
        after = max(index + 1, bisect_left(self._starts, call.end - SLACK))
        return min(after, self._first_tool.get(call.call_id, after))

    def _write_later(
        self,
        index: int,
        call: CallRecord,
        variable: str,
        value: Any,
        id: str | None = None,
        always: bool = False,
    ) -> None:
        write = PendingWrite(call.end, call.call_id, variable, value, id, always)
        self._pending[self._effective_index(index, call)].append(write)

    # nodes and agents

    def _container(self, index: int, call: CallRecord) -> None:
        if call.call_id in self.graph.nodes:
            state = self.graph.state_before(call)
            if state is not None:
                self._write_graph_state(index, state)
            return
        if call.call_id in self.graph.graphs:
            self._ended_graphs[self._effective_index(index, call)].append(call)
        outermost = call.parent_id is None
        if outermost and not (self.has_graph_state and "messages" not in (call.input or "")):
            task = last_text(unwrap_payload(parse_json(call.input)))
            self._awaits_input = not (isinstance(task, str) and task)
            if not self._awaits_input:
                self._write(index, names.INPUT, task, None)
        elif call.kind == "agent" and not outermost:
            self._agent(index, call)

    def _agent(self, index: int, call: CallRecord) -> None:
        task = last_text(unwrap_payload(parse_json(call.input)))
        answer = last_text(unwrap_payload(parse_json(call.output)))
        if task:
            self._write(index, names.agent_variable(call, "input"), task, None)
        if self._awaits_input and isinstance(task, str) and task:
            self._write(index, names.INPUT, task, None)
            self._awaits_input = False
        if answer:
            self._write_later(index, call, names.agent_variable(call, "output"), answer)

    def _write_graph_state(self, index: int, state: GraphState) -> None:
        current, step = self.variables.current, self._step(index)
        for key, value in state.values.items():
            variable = state.prefix + key
            old = current.get(variable)
            if old is None or old.value != value or type(old.value) is not type(value):
                by = state.writer(key, value)
                self.variables.write(step, variable, value, by, always=True, graph=True)

    # calls of models and tools

    def _llm(self, index: int, call: CallRecord) -> None:
        component = _component(call)
        if call.input:
            invocation = self._invocations.get(call.call_id)
            prompt = self.histories.add_prompt(
                component, call.start, call.end, call.input, invocation
            )
            if prompt.rewrite is not None:
                self._write_rewrite(index, call, prompt.rewrite)
            self._write_untraced(index, prompt)
            text, turn_index = prompt.text, prompt.turn_index
            digest, reads = self._state_digest(prompt.digest), self._reads(prompt)
        else:
            text, turn_index = "", self.histories.turn_index(component, call.start, call.end)
            digest, reads = self._state_digest(None), []
        action = self._write_answer(index, call, text)
        self.observations[call.call_id] = Observation(
            call.call_id, reads, digest, action, turn_index
        )

    def _reads(self, prompt: Prompt) -> list[str]:
        """Return the variables in a prompt, found by their text; results also by tool-call id."""
        # the rest was searched before only if the prompt repeats its text, not just its dialogue
        added = join_turns(prompt.new_turns) if prompt.continues and prompt.lookups else None
        reads = self.variables.find_in(prompt.text, prompt.lookups, added)
        results = self.variables.results_of(prompt.result_ids)
        return reads + [variable for variable in results if variable not in reads]

    def _observe(self, call: CallRecord, reads: list[str], digest: str | None) -> None:
        turn_index = self.histories.turn_index(_component(call), call.start, call.end)
        self.observations[call.call_id] = Observation(call.call_id, reads, digest, None, turn_index)

    def _state_digest(self, input_digest: str | None) -> str | None:
        """Return the digest of the graph's state; without one, the digest of the call's input."""
        return self.variables.state_digest if self.has_graph_state else input_digest

    def _write_rewrite(self, index: int, call: CallRecord, rewrite: Rewrite) -> None:
        if rewrite.author is not None:
            author = self.observations[rewrite.author]
            self.observations[rewrite.author] = author._replace(action="context")
            self.variables.rename(rewrite.author, names.summary_variable)
        value = {"gone": rewrite.removed, "kept": rewrite.remaining}
        self._write(index, names.call_variable(call, names.CONTEXT), value, rewrite.author)

    def _write_untraced(self, index: int, prompt: Prompt) -> None:
        """Write what no traced call wrote: the user's messages, and results of untraced tools."""
        user_texts = []
        for turn in prompt.new_turns:
            if turn.requests or turn.results:
                self._write_untraced_results(index, turn)
            elif turn.role == "user" and turn.text:
                user_texts.append(turn.text)
        if user_texts and not self.has_graph_state and (self._awaits_input or prompt.continues):
            if not self.variables.find_in(user_texts[-1]):
                self._write(index, names.INPUT, user_texts[-1], None)
            self._awaits_input = False

    def _write_untraced_results(self, index: int, turn: Turn) -> None:
        for request in turn.requests:
            self._tool_names.setdefault(request.id, request.name)
        for id, result in turn.results:
            if id not in self._traced_results and id not in self.variables.result_ids:
                name = names.tool_variable(self._tool_names.get(id), "result")
                by = self._call_ids.get(id)
                self._write(index, name, parse_structured(result), by, id, always=True)

    def _write_answer(self, index: int, call: CallRecord, prompt: str) -> str | None:
        """Write an LLM call's text or tool requests, and return its action."""
        turns = parse_turns(call.output)
        if not any(turn.text for turn in turns):
            return None
        if call.input:
            self.histories.add_reply(_component(call), turns)
        self._texts[call.call_id] = text = join_turns(turns).strip()
        requests = [request for turn in turns for request in turn.requests]
        if not requests and call.delivered is False:
            return None  # the client left the stream: nobody has the whole text
        for request in requests:
            self._tool_names[request.id] = request.name
            variable = names.tool_variable(request.name, "arguments")
            self._write_later(index, call, variable, request.arguments, always=True)
        if requests:
            return "tool_request"
        self.histories.add_statement(call.call_id, call.end, text, prompt)
        tool_input = self._inputs_by_text.get(text)
        if tool_input is not None:
            self._write_later(index, call, *tool_input)
            return "answer"
        self._answers.append(call)
        agent = names.agent_name(call)
        variable = names.call_variable(call, "output") if self._has_agents else names.ANSWER
        if not self.has_graph_state or agent:
            self._write_later(index, call, variable, text)
        return "answer"

    def _tool(self, index: int, call: CallRecord) -> None:
        self._observe_input(index, call, names.tool_variable(call.name, "arguments"))
        result = parse_structured(call.output)
        if not call.output and call.status == "error":
            result = {"error": call.error_type or "error"}
        if result is not None:
            variable = names.tool_variable(call.name, "result")
            self._write_later(index, call, variable, result, call.tool_call_id, always=True)

    def _retrieval(self, index: int, call: CallRecord) -> None:
        self._observe_input(index, call, names.retrieval_variable(call.name, "query"))
        if call.output:
            documents = names.unwrap_documents(parse_structured(call.output))
            variable = names.retrieval_variable(call.name, "documents")
            self._write_later(index, call, variable, documents, always=True)

    def _embedding(self, index: int, call: CallRecord) -> None:
        self._observe(call, [], self._state_digest(None))

    def _observe_input(self, index: int, call: CallRecord, variable: str) -> None:
        """Store the reads of a tool or a retrieval; write its input where no LLM call did."""
        value = parse_structured(call.input)
        if value is not None and value != "" and call.tool_call_id not in self._tool_names:
            requester_text = self._texts.get(call.requested_by or "", "")
            quoted = any(text in requester_text for text in search_texts(value))
            self._write(index, variable, value, call.requested_by if quoted else None)
        reads = self.variables.find_in(SEPARATOR.join(names.all_texts(value)))
        if variable in self.variables.current and variable not in reads:
            reads.append(variable)
        digest = None if call.input is None or self.has_graph_state else value_digest(value)
        self._observe(call, reads, self._state_digest(digest))

    # the end

    def _write_final_answer(self) -> None:
        """Write the outermost agent's answer, else the last text of an LLM call."""
        if names.ANSWER in self.variables.graph_hashes:
            return
        root = next(
            (c for c in reversed(self.calls) if c.kind == "agent" and not c.parent_id), None
        )
        output = root.output if root is not None else None
        answer = last_text(unwrap_payload(parse_json(output))) if output else None
        last = next(
            (
                c
                for c in reversed(self._answers)
                if self._action(c) == "answer"
                # a call outside all agents makes a title or a summary for the user's interface
                and (names.agent_name(c) or not self._has_agents)
            ),
            None,
        )
        text = self._texts[last.call_id] if last is not None else None
        if root is not None and isinstance(answer, str) and answer.strip() != text:
            self._write(self._index_after(root), names.ANSWER, answer, root.call_id)
        elif last is not None:
            self._write(self._index_after(last), names.ANSWER, text, last.call_id)

    def _action(self, call: CallRecord) -> str | None:
        return self.observations[call.call_id].action

    def _index_after(self, call: CallRecord) -> int:
        index = next(n for n, one in enumerate(self.calls) if one.call_id == call.call_id)
        return self._effective_index(index, call)


def _component(call: CallRecord) -> Component:
    return call.kind, call.agent, call.node
