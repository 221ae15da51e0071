"""Context management is an action of its own; ordinary growth of a history is not."""

import json
from base64 import b64encode
from pathlib import Path
from struct import pack
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property_examples import examples
from tests.transforms.states.conftest import TraceBuilder, assistant, result, system, user

from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.states.from_calls import states

RULES = system("You research things.")
TASK = user("Find out who built the first lighthouse at Kiel.")
ASKED = assistant("", {"id": "c1", "name": "search", "arguments": {"q": "lighthouse Kiel"}})
FOUND = result("c1", "The lighthouse of Kiel was built in 1807 by the harbour board.")
AGAIN = assistant("", {"id": "c2", "name": "search", "arguments": {"q": "harbour board Kiel"}})
MORE = result("c2", "The harbour board of Kiel was led by J. Petersen in 1807.")
HISTORY = [RULES, TASK, ASKED, FOUND, AGAIN, MORE]
SUMMARISE = user("Summarise the conversation so far.")
SUMMARY = "Kiel's lighthouse: 1807, harbour board under J. Petersen."
DONE = assistant("It was the harbour board, led by J. Petersen.")


def result_text(result: Any) -> str:
    return str(result["parts"][0]["response"])


def run_two_searches(trace: Any, **cells: Any) -> None:
    """Add two searches; each prompt continues the previous one."""
    trace.llm(HISTORY[:2], ASKED, **cells)
    trace.tool("search", {"q": "lighthouse Kiel"}, result_text(FOUND), tool_call_id="c1")
    trace.llm(HISTORY[:4], AGAIN, **cells)
    trace.tool(
        "search", {"q": "harbour board Kiel"}, MORE["parts"][0]["response"], tool_call_id="c2"
    )


def contexts(trace: Any) -> list[tuple[Any, ...]]:
    return [row for row in trace.written if row[1].endswith("context")]


@pytest.mark.parametrize(
    "compacted",
    [
        [RULES, user(f"Summary of what was done: {SUMMARY}"), user("Go on.")],
        [system(f"You research things.\nEarlier: {SUMMARY}"), TASK, MORE],
        [RULES, TASK, user(SUMMARY), MORE],
        [RULES, TASK, assistant(f"So far: {SUMMARY}"), user("Go on.")],
    ],
    ids=["as the user", "in the instructions", "between", "as the assistant, quoted"],
)
def test_a_loop_that_compacts_its_own_messages(trace: Any, compacted: list[Any]) -> None:
    run_two_searches(trace)
    by = trace.llm([*HISTORY, SUMMARISE], assistant(SUMMARY))
    trace.llm(compacted, DONE)
    assert trace.actions == ["tool_request", "tool_request", "context", "answer"]
    ((_, variable, _, writer),) = contexts(trace)
    assert (variable, writer) == ("context", by)
    named = [(name, value) for _, name, value, call in trace.written if call == by]
    assert ("summary", f'"{SUMMARY}"') in named
    assert "answer" not in dict(named)


def test_a_summarisation_node_of_a_graph(trace: Any) -> None:
    """LangGraph: another node asks for the summary, older messages are removed from the state."""
    model = {"node": "conversation", "agent": "conversation"}
    for upto, answer in ((2, ASKED), (4, AGAIN)):
        trace.node("conversation", {"messages": HISTORY[1:upto]})
        trace.llm(HISTORY[:upto], answer, **model)
    node = {"node": "summarize", "agent": "summarize"}
    trace.node("summarize", {"messages": HISTORY[1:]})
    by = trace.llm([*HISTORY[1:], SUMMARISE], assistant(SUMMARY), **node)
    trace.node("conversation", {"messages": HISTORY[-2:], "summary": SUMMARY})
    trace.llm([system(f"Summary of conversation earlier: {SUMMARY}"), *HISTORY[-2:]], DONE, **model)
    assert trace.actions == ["tool_request", "tool_request", "context", "answer"]
    assert [(row[1], row[3]) for row in contexts(trace)] == [("context", by)]


def test_a_team_whose_summariser_is_an_agent_of_its_own(trace: Any) -> None:
    """AutoGen: other agents' messages have the user's role; the summary is an agent's message."""
    statement = "The lighthouse of Kiel was built in 1807 by the harbour board."
    checked = "The board was led by J. Petersen, says the register."
    team = [RULES, TASK, user(statement), user(checked)]
    trace.llm(team[:2], assistant(statement), agent="researcher")
    trace.llm(team[:3], assistant(checked), agent="checker")
    trace.llm(team, assistant("Then we should look for the plans of 1807."), agent="researcher")
    by = trace.llm(
        [system("Summarise."), user(f"{statement}\n{checked}")], assistant(SUMMARY), agent="s"
    )
    trace.llm([RULES, TASK, user(SUMMARY)], assistant("Done."), agent="researcher")
    assert trace.actions == ["answer", "answer", "answer", "context", "answer"]
    assert [(row[1], row[3]) for row in contexts(trace)] == [("researcher.context", by)]


def test_a_sliding_window_is_written_by_the_agents_code(trace: Any) -> None:
    run_two_searches(trace)
    trace.llm(HISTORY, AGAIN)
    trace.llm([RULES, AGAIN, MORE, DONE, user("And who paid for it?")], DONE)
    assert trace.actions == ["tool_request"] * 3 + ["answer"]
    assert [row[2:] for row in contexts(trace)] == [('{"gone":3,"kept":2}', None)]


def test_a_window_that_begins_with_the_last_answer_is_no_summary(trace: Any) -> None:
    run_two_searches(trace)
    trace.llm(HISTORY, DONE)
    trace.llm([RULES, DONE, user("And who paid for it?")], assistant("The city of Kiel did."))
    assert trace.actions == ["tool_request", "tool_request", "answer", "answer"]


def test_a_cleared_result_is_written_by_the_agents_code(trace: Any) -> None:
    run_two_searches(trace)
    cleared = [*HISTORY[:3], result("c1", "[cleared]"), *HISTORY[4:]]
    trace.llm(cleared, DONE)
    assert trace.actions == ["tool_request", "tool_request", "answer"]
    assert [row[2:] for row in contexts(trace)] == [('{"gone":1,"kept":2}', None)]


@pytest.mark.parametrize(
    "prompt",
    [
        [*HISTORY],
        [system("You research things. It is 12:01."), *HISTORY[1:]],
        [*HISTORY, DONE, user("And who paid for it?")],
        [RULES, TASK],
        [system("You judge answers."), user("Is this right? The harbour board built it.")],
    ],
    ids=["growth", "other instructions", "the next turn", "a retry", "another conversation"],
)
def test_no_false_alarm(trace: Any, prompt: list[Any]) -> None:
    run_two_searches(trace)
    trace.llm(prompt, DONE)
    assert trace.actions == ["tool_request", "tool_request", "answer"]
    assert contexts(trace) == []


SENTENCE = st.sampled_from(
    [SUMMARY, "The lighthouse was built in 1807.", "It was the harbour board that built it.", "ok"]
)
TURN = st.one_of(SENTENCE.map(user), SENTENCE.map(lambda text: result("c1", text)))


@settings(max_examples=examples(80))
@given(
    added=st.lists(st.tuples(SENTENCE, st.lists(TURN, max_size=3), st.booleans()), max_size=6),
    others=st.booleans(),
)
def test_a_history_that_only_grows_is_never_rewritten(
    added: list[tuple[str, list[Any], bool]], others: bool
) -> None:
    """Repeated answers, quotations and another agent's calls in between make no rewrite."""
    trace, history = TraceBuilder(), [RULES, TASK]
    for number, (answer, turns, changes) in enumerate(added):
        prompt = [system(f"It is {number} o'clock."), *history[1:]] if changes else history
        trace.llm(prompt, assistant(answer))
        if others:
            judge = [system("You judge."), user(f"Is this right? {answer}")]
            trace.llm(judge, assistant(SUMMARY), agent="judge")
        history = [*history, assistant(answer), *turns]
    assert "context" not in trace.actions
    assert contexts(trace) == []


def test_a_template_that_quotes_the_last_answer_is_no_history(trace: Any) -> None:
    queries = ["SELECT name FROM singer", "SELECT name FROM singers WHERE age > 20", "SELECT 1"]
    before = "none"
    for query in queries:
        trace.llm([RULES, user(f"Mend this query: {before}")], assistant(query))
        before = query
    assert trace.actions == ["answer"] * 3
    assert contexts(trace) == []


def test_sub_agents_that_run_one_after_the_other_begin_anew(trace: Any) -> None:
    lead = trace.call("agent", "lead", agent="lead", end=10**9)
    trace.clock = 1
    for topic in ("the tower", f"the lamp. Known: {SUMMARY}"):
        run = trace.call("agent", "helper", agent="helper", parent_id=lead)
        prompt_messages = [RULES, user(f"Look into {topic}")]
        trace.clock = trace.rows[-1]["start"] + 1
        trace.llm(prompt_messages, ASKED, agent="helper", parent_id=run)
        trace.llm(
            [*prompt_messages, ASKED, FOUND], assistant(SUMMARY), agent="helper", parent_id=run
        )
    assert trace.actions == ["tool_request", "answer"] * 2
    assert contexts(trace) == []


def test_calls_in_parallel_share_a_turn_index(trace: Any) -> None:
    trace.llm([TASK], ASKED)
    for _ in range(2):
        trace.llm([user("Look into the tower.")], DONE, start=20_000_000, end=30_000_000)
    trace.llm([user("Put it together.")], DONE, start=40_000_000, end=50_000_000)
    assert states(trace.calls)[1]["turn_index"].to_list() == [0, 1, 1, 2]


def test_a_prompt_proves_the_order_where_clocks_do_not(trace: Any) -> None:
    trace.llm([TASK], ASKED, start=0, end=900_000_000)  # its gateway's clock is ahead
    trace.llm([TASK, ASKED, FOUND], DONE, start=10_000_000, end=20_000_000)
    assert states(trace.calls)[1]["turn_index"].to_list() == [0, 1]


def chat(
    rollout: Any,
    prompt_messages: list[Any],
    answer_message: Any,
    prompt: list[int],
    reply: list[int],
) -> str:
    """Emit a call of the policy, as the gateway records it."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "sql",
        "gen_ai.request.temperature": 1.0,
        "gen_ai.input.messages": json.dumps(prompt_messages),
        "gen_ai.output.messages": json.dumps([answer_message]),
        "ltrain.policy.name": "sql",
        "ltrain.policy.version": 0,
        "ltrain.prompt_token_ids": json.dumps(prompt),
        "ltrain.response_token_ids": json.dumps(reply),
        "ltrain.response_logprobs": b64encode(pack(f"<{len(reply)}f", *reply)).decode(),
    }
    return str(rollout.emit("chat sql", "ltrain.gateway", attributes, process="gateway"))


def test_it_is_credited_like_any_other_action(
    scene: Any, read_back: Any, recipe_file: Path
) -> None:
    text = recipe_file.read_text().replace(', agents = ["write", "rewrite"]', "")
    recipe_file.write_text(text)
    compactions = []
    for sample in (0, 1):
        rollout = scene.attempt("t1", sample)
        chat(rollout, HISTORY[:2], ASKED, [1, 2], [3])
        compactions.append(chat(rollout, [*HISTORY, SUMMARISE], assistant(SUMMARY), [1, 4], [5]))
        chat(rollout, [RULES, user(f"So far: {SUMMARY}")], DONE, [1, 6], [7])
        rollout.evaluate(float(sample))
        rollout.close()
    spans = read_back(scene)
    tables = derive(spans, Recipe.load(recipe_file)).tables
    observations = states(tables["calls"])[1].filter(pl.col("action") == "context")
    assert sorted(observations["call_id"]) == sorted(compactions)
    credited = tables["transitions"].join(observations, "call_id")
    assert sorted(round(each, 3) for each in credited["advantage"]) == [-0.707, 0.707]
    assert set(compactions) <= set(tables["samples"]["transition_ids"].explode())
