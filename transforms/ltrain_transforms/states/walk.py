"""One execution, call by call: what is written when, who reads it, what each call does.

A write holds from the first call on that begins after the writer has ended. So calls in parallel
never see each other's writes, and the state at step t is what call t found.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from ltrain_transforms.states import names
from ltrain_transforms.states.contexts import SLACK, Contexts, Prompt, Rewriting
from ltrain_transforms.states.graph import Graph, Shown
from ltrain_transforms.states.prompts import BETWEEN, Turn, joined, read
from ltrain_transforms.states.step import Saw, Step
from ltrain_transforms.states.values import digest, needles, opened, structured, text_in
from ltrain_transforms.states.variables import Due, Variables
from ltrain_transforms.untrusted import parsed


class Walk:
    """Everything `states` says of one execution; `steps` are its calls in their order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.graph = Graph(steps)
        self.has_state = self.graph.speaks
        self.variables = Variables(steps[0].execution_id)
        self.contexts = Contexts(hashes=not self.has_state)
        self.saw: dict[str, Saw] = {}
        self._starts = list(accumulate((step.start for step in steps), max))
        self._due: defaultdict[int, list[Due]] = defaultdict(list)
        self._left: defaultdict[int, list[Step]] = defaultdict(list)
        self._agents = names.invocations(steps)
        self._taken = names.taken_whole(steps)
        tools = [step for step in steps if step.kind == "tool"]
        self._tools = {s.tool_call_id: s.call_id for s in tools if s.tool_call_id}
        self._answered = {s.tool_call_id for s in tools if s.output}
        self._first_tool: dict[str | None, int] = {}
        self._tool_names: dict[str, str] = {}
        self._said: dict[str, str] = {}
        self._answers: list[Step] = []
        self._awaits_input = True
        for index, step in enumerate(steps):
            if step.kind == "tool":
                self._first_tool.setdefault(step.requested_by, index)

    def walk(self) -> None:
        handle: dict[str, Callable[[int, Step], None]] = {
            "llm": self._llm,
            "tool": self._tool,
            "retrieval": self._retrieval,
            "embedding": self._embedding,
            "agent": self._holder,
            "node": self._holder,
        }
        for index, step in enumerate(self.steps):
            if index in self._due or index in self._left:
                self._settle(index)
            if step.kind in handle:
                handle[step.kind](index, step)
        self._settle(len(self.steps))
        self._finish()

    def _t(self, index: int) -> int:
        """Give the step's number; behind the last call one more."""
        return self.steps[index].seq if index < len(self.steps) else self.steps[-1].seq + 1

    def _settle(self, index: int) -> None:
        """Write what was written since the step before."""
        for due in sorted(self._due.pop(index, ()), key=lambda due: due.at):
            self._write(index, due.variable, due.value, due.by, due.id, due.again)
        for graph in self._left.pop(index, ()):
            shown = self.graph.left(graph)
            if shown is not None:
                self._graph_state(index, shown)

    def _write(
        self,
        index: int,
        variable: str,
        value: Any,
        by: str | None,
        id: str | None = None,
        again: bool = False,
    ) -> None:
        self.variables.write(self._t(index), variable, value, by, id=id, again=again)

    def _seen_from(self, index: int, step: Step) -> int:
        """Find the first call that begins after `step` has ended, or that it asked for."""
        after = max(index + 1, bisect_left(self._starts, step.end - SLACK))
        return min(after, self._first_tool.get(step.call_id, after))

    def _later(
        self,
        index: int,
        step: Step,
        variable: str,
        value: Any,
        id: str | None = None,
        again: bool = False,
    ) -> None:
        due = Due(step.end, step.call_id, variable, value, id, again)
        self._due[self._seen_from(index, step)].append(due)

    # nodes and agents

    def _holder(self, index: int, step: Step) -> None:
        if step.call_id in self.graph.nodes:
            shown = self.graph.at(step)
            if shown is not None:
                self._graph_state(index, shown)
            return
        if step.call_id in self.graph.wholes:
            self._left[self._seen_from(index, step)].append(step)
        outermost = step.parent_id is None
        if outermost and not (self.has_state and "messages" not in (step.input or "")):
            given = text_in(opened(parsed(step.input)))
            self._awaits_input = not (isinstance(given, str) and given)
            if not self._awaits_input:
                self._write(index, names.INPUT, given, None)
        elif step.kind == "agent" and not outermost:
            self._agent(index, step)

    def _agent(self, index: int, step: Step) -> None:
        given, said = text_in(opened(parsed(step.input))), text_in(opened(parsed(step.output)))
        if given:
            self._write(index, names.of_agent(step, "input"), given, None)
        if self._awaits_input and isinstance(given, str) and given:
            self._write(index, names.INPUT, given, None)
            self._awaits_input = False
        if said:
            self._later(index, step, names.of_agent(step, "output"), said)

    def _graph_state(self, index: int, shown: Shown) -> None:
        held, t = self.variables.held, self._t(index)
        for key, value in shown.values.items():
            variable = shown.prefix + key
            old = held.get(variable)
            if old is None or old.value != value or type(old.value) is not type(value):
                by = shown.writer(key, value)
                self.variables.write(t, variable, value, by, again=True, graph=True)

    # what calls models and tools

    def _llm(self, index: int, step: Step) -> None:
        lane = (step.kind, step.agent, step.node)
        call, start, end = step.call_id, step.start, step.end
        if step.input:
            prompt = self.contexts.enter(lane, start, end, step.input, self._agents.get(call))
            if prompt.rewriting is not None:
                self._rewritten(index, step, prompt.rewriting)
            self._take_in(index, prompt)
            text, rank, state = prompt.text, prompt.rank, self._state(prompt.digest)
            reads = self._reads(prompt)
        else:
            text, rank, state = "", self.contexts.rank(lane, start, end), self._state(None)
            reads = []
        action = self._answer(index, step, text)
        self.saw[call] = Saw(call, reads, state, action, rank)

    def _reads(self, prompt: Prompt) -> list[str]:
        """Find the variables in a prompt: by their text, results also by their tool-call id."""
        # the turns were there before only if the prompt goes on, and goes on word by word
        added = joined(prompt.fresh) if prompt.goes_on and prompt.found else None
        reads = self.variables.read(prompt.text, prompt.found, added)
        answering = self.variables.answering(prompt.ids)
        return reads + [variable for variable in answering if variable not in reads]

    def _see(self, step: Step, reads: list[str], state: str | None) -> None:
        rank = self.contexts.rank((step.kind, step.agent, step.node), step.start, step.end)
        self.saw[step.call_id] = Saw(step.call_id, reads, state, None, rank)

    def _state(self, observed: str | None) -> str | None:
        """Give the digest of a graph's state; without one, of what the call was shown."""
        return self.variables.state_digest if self.has_state else observed

    def _rewritten(self, index: int, step: Step, rewriting: Rewriting) -> None:
        if rewriting.by is not None:
            self.saw[rewriting.by] = self.saw[rewriting.by]._replace(action="context")
            self.variables.rename(rewriting.by, names.summary)
        value = {"gone": rewriting.gone, "kept": rewriting.kept}
        self._write(index, names.of_call(step, names.CONTEXT), value, rewriting.by)

    def _take_in(self, index: int, prompt: Prompt) -> None:
        """Write what the prompt brings that no traced call did: a user's words, tools' results."""
        users = []
        for turn in prompt.fresh:
            if turn.requests or turn.results:
                self._take_results(index, turn)
            elif turn.role == "user" and turn.text:
                users.append(turn.text)
        if users and not self.has_state and (self._awaits_input or prompt.goes_on):
            if not self.variables.read(users[-1]):
                self._write(index, names.INPUT, users[-1], None)
            self._awaits_input = False

    def _take_results(self, index: int, turn: Turn) -> None:
        for request in turn.requests:
            self._tool_names.setdefault(request.id, request.name)
        for id, result in turn.results:
            if id not in self._answered and id not in self.variables.ids:
                name = names.of_tool(self._tool_names.get(id), "result")
                self._write(index, name, structured(result), self._tools.get(id), id)

    def _answer(self, index: int, step: Step, saw: str) -> str | None:
        """Write what an LLM call says or asks for, and give its action."""
        said = read(step.output)
        if not any(turn.text for turn in said):
            return None
        if step.input:
            self.contexts.reply((step.kind, step.agent, step.node), said)
        self._said[step.call_id] = text = joined(said).strip()
        requests = [request for turn in said for request in turn.requests]
        for asked in requests:
            self._tool_names[asked.id] = asked.name
            variable = names.of_tool(asked.name, "arguments")
            self._later(index, step, variable, asked.arguments, again=True)
        if requests:
            return "tool_request"
        self.contexts.say(step.call_id, step.end, text, saw)
        taken = self._taken.get(text)
        if taken is not None:
            self._later(index, step, *taken)
            return "answer"
        self._answers.append(step)
        variable = names.of_call(step, "output") if names.agent(step) else names.ANSWER
        if not self.has_state or names.agent(step):
            self._later(index, step, variable, text)
        return "answer"

    def _tool(self, index: int, step: Step) -> None:
        arguments = names.of_tool(step.name, "arguments")
        self._asked(index, step, arguments)
        result = structured(step.output)
        if not step.output and step.status == "error":
            result = {"error": step.error_type or "error"}
        if result is not None:
            variable = names.of_tool(step.name, "result")
            self._later(index, step, variable, result, step.tool_call_id, again=True)

    def _retrieval(self, index: int, step: Step) -> None:
        self._asked(index, step, names.of_retrieval(step.name, "query"))
        if step.output:
            documents = names.documents(structured(step.output))
            variable = names.of_retrieval(step.name, "documents")
            self._later(index, step, variable, documents, again=True)

    def _embedding(self, index: int, step: Step) -> None:
        self._see(step, [], self._state(None))

    def _asked(self, index: int, step: Step, variable: str) -> None:
        """Write what a tool is given where no LLM call asked for it, and note its reads."""
        given = structured(step.input)
        if given is not None and given != "" and step.tool_call_id not in self._tool_names:
            asker = self._said.get(step.requested_by or "", "")
            by = step.requested_by if any(text in asker for text in needles(given)) else None
            self._write(index, variable, given, by)
        text = BETWEEN.join(names.texts(given))
        reads = self.variables.read(text)
        if variable in self.variables.held and variable not in reads:
            reads.append(variable)
        observed = None if step.input is None or self.has_state else digest(given)
        self._see(step, reads, self._state(observed))

    # the end

    def _finish(self) -> None:
        """Say which of the answers was the last one."""
        if names.ANSWER in self.variables.graph:
            return
        root = next(
            (s for s in reversed(self.steps) if s.kind == "agent" and not s.parent_id), None
        )
        given = text_in(opened(parsed(root.output))) if root is not None and root.output else None
        answers = (s for s in reversed(self._answers) if self.saw[s.call_id].action == "answer")
        last = next(answers, None)
        said = self._said[last.call_id] if last is not None else None
        if root is not None and isinstance(given, str) and given.strip() != said:
            self._write(self._after(root), names.ANSWER, given, root.call_id)
        elif last is not None:
            self._write(self._after(last), names.ANSWER, said, last.call_id)

    def _after(self, step: Step) -> int:
        index = next(n for n, each in enumerate(self.steps) if each.call_id == step.call_id)
        return self._seen_from(index, step)
