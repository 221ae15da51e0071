"""Context management is an action of its own, and ordinary growth is none."""

import json
from base64 import b64encode
from pathlib import Path
from struct import pack
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transforms.states.conftest import Told, assistant, result, system, user

from ltrain_transforms.pipeline import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.states import states

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


def said(result: Any) -> str:
    return str(result["parts"][0]["response"])


def worked(told: Any, **cells: Any) -> None:
    """Two searches, each prompt the one before and more."""
    told.llm(HISTORY[:2], ASKED, **cells)
    told.tool("search", {"q": "lighthouse Kiel"}, said(FOUND), tool_call_id="c1")
    told.llm(HISTORY[:4], AGAIN, **cells)
    told.tool(
        "search", {"q": "harbour board Kiel"}, MORE["parts"][0]["response"], tool_call_id="c2"
    )


def contexts(told: Any) -> list[tuple[Any, ...]]:
    return [row for row in told.written if row[1].endswith("context")]


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
def test_a_loop_that_compacts_its_own_messages(told: Any, compacted: list[Any]) -> None:
    worked(told)
    by = told.llm([*HISTORY, SUMMARISE], assistant(SUMMARY))
    told.llm(compacted, DONE)
    assert told.actions == ["tool_request", "tool_request", "context", "answer"]
    ((_, variable, _, writer),) = contexts(told)
    assert (variable, writer) == ("context", by)
    named = [(name, value) for _, name, value, call in told.written if call == by]
    assert ("summary", f'"{SUMMARY}"') in named
    assert "answer" not in dict(named)


def test_a_summarisation_node_of_a_graph(told: Any) -> None:
    """LangGraph: another node asks for the summary, older messages are removed from the state."""
    model = {"node": "conversation", "agent": "conversation"}
    for upto, answer in ((2, ASKED), (4, AGAIN)):
        told.node("conversation", {"messages": HISTORY[1:upto]})
        told.llm(HISTORY[:upto], answer, **model)
    node = {"node": "summarize", "agent": "summarize"}
    told.node("summarize", {"messages": HISTORY[1:]})
    by = told.llm([*HISTORY[1:], SUMMARISE], assistant(SUMMARY), **node)
    told.node("conversation", {"messages": HISTORY[-2:], "summary": SUMMARY})
    told.llm([system(f"Summary of conversation earlier: {SUMMARY}"), *HISTORY[-2:]], DONE, **model)
    assert told.actions == ["tool_request", "tool_request", "context", "answer"]
    assert [(row[1], row[3]) for row in contexts(told)] == [("context", by)]


def test_a_team_whose_summariser_is_an_agent_of_its_own(told: Any) -> None:
    """AutoGen: what others said has the user's role; the summary is kept as an agent's message."""
    said = "The lighthouse of Kiel was built in 1807 by the harbour board."
    checked = "The board was led by J. Petersen, says the register."
    team = [RULES, TASK, user(said), user(checked)]
    told.llm(team[:2], assistant(said), agent="researcher")
    told.llm(team[:3], assistant(checked), agent="checker")
    told.llm(team, assistant("Then we should look for the plans of 1807."), agent="researcher")
    by = told.llm([system("Summarise."), user(f"{said}\n{checked}")], assistant(SUMMARY), agent="s")
    told.llm([RULES, TASK, user(SUMMARY)], assistant("Done."), agent="researcher")
    assert told.actions == ["answer", "answer", "answer", "context", "answer"]
    assert [(row[1], row[3]) for row in contexts(told)] == [("researcher.context", by)]


def test_a_window_that_slides_is_the_codes_doing(told: Any) -> None:
    worked(told)
    told.llm(HISTORY, AGAIN)
    told.llm([RULES, AGAIN, MORE, DONE, user("And who paid for it?")], DONE)
    assert told.actions == ["tool_request"] * 3 + ["answer"]
    assert [row[2:] for row in contexts(told)] == [('{"gone":3,"kept":2}', None)]


def test_a_window_that_begins_with_the_last_answer_is_no_summary(told: Any) -> None:
    worked(told)
    told.llm(HISTORY, DONE)
    told.llm([RULES, DONE, user("And who paid for it?")], assistant("The city of Kiel did."))
    assert told.actions == ["tool_request", "tool_request", "answer", "answer"]


def test_a_result_that_is_cleared_is_the_codes_doing(told: Any) -> None:
    worked(told)
    cleared = [*HISTORY[:3], result("c1", "[cleared]"), *HISTORY[4:]]
    told.llm(cleared, DONE)
    assert told.actions == ["tool_request", "tool_request", "answer"]
    assert [row[2:] for row in contexts(told)] == [('{"gone":1,"kept":2}', None)]


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
def test_no_false_alarm(told: Any, prompt: list[Any]) -> None:
    worked(told)
    told.llm(prompt, DONE)
    assert told.actions == ["tool_request", "tool_request", "answer"]
    assert contexts(told) == []


SENTENCE = st.sampled_from(
    [SUMMARY, "The lighthouse was built in 1807.", "It was the harbour board that built it.", "ok"]
)
TURN = st.one_of(SENTENCE.map(user), SENTENCE.map(lambda text: result("c1", text)))


@settings(max_examples=80, deadline=None)
@given(
    added=st.lists(st.tuples(SENTENCE, st.lists(TURN, max_size=3), st.booleans()), max_size=6),
    others=st.booleans(),
)
def test_a_history_that_only_grows_is_never_rewritten(
    added: list[tuple[str, list[Any], bool]], others: bool
) -> None:
    """Whatever is said again, quoted or told to another agent in between."""
    told, history = Told(), [RULES, TASK]
    for number, (answer, turns, changes) in enumerate(added):
        prompt = [system(f"It is {number} o'clock."), *history[1:]] if changes else history
        told.llm(prompt, assistant(answer))
        if others:
            judge = [system("You judge."), user(f"Is this right? {answer}")]
            told.llm(judge, assistant(SUMMARY), agent="judge")
        history = [*history, assistant(answer), *turns]
    assert "context" not in told.actions
    assert contexts(told) == []


def test_a_template_that_quotes_the_last_answer_is_no_history(told: Any) -> None:
    queries = ["SELECT name FROM singer", "SELECT name FROM singers WHERE age > 20", "SELECT 1"]
    before = "none"
    for query in queries:
        told.llm([RULES, user(f"Mend this query: {before}")], assistant(query))
        before = query
    assert told.actions == ["answer"] * 3
    assert contexts(told) == []


def test_sub_agents_that_run_one_after_the_other_begin_anew(told: Any) -> None:
    lead = told.call("agent", "lead", agent="lead", end=10**9)
    told.clock = 1
    for topic in ("the tower", f"the lamp. Known: {SUMMARY}"):
        run = told.call("agent", "helper", agent="helper", parent_id=lead)
        asked = [RULES, user(f"Look into {topic}")]
        told.clock = told.rows[-1]["start"] + 1
        told.llm(asked, ASKED, agent="helper", parent_id=run)
        told.llm([*asked, ASKED, FOUND], assistant(SUMMARY), agent="helper", parent_id=run)
    assert told.actions == ["tool_request", "answer"] * 2
    assert contexts(told) == []


def test_calls_in_parallel_share_a_rank(told: Any) -> None:
    told.llm([TASK], ASKED)
    for _ in range(2):
        told.llm([user("Look into the tower.")], DONE, start=20_000_000, end=30_000_000)
    told.llm([user("Put it together.")], DONE, start=40_000_000, end=50_000_000)
    assert states(told.calls)[1]["turn_index"].to_list() == [0, 1, 1, 2]


def test_a_prompt_proves_the_order_where_clocks_do_not(told: Any) -> None:
    told.llm([TASK], ASKED, start=0, end=900_000_000)  # its gateway's clock is ahead
    told.llm([TASK, ASKED, FOUND], DONE, start=10_000_000, end=20_000_000)
    assert states(told.calls)[1]["turn_index"].to_list() == [0, 1]


def chat(rollout: Any, asked: list[Any], answered: Any, prompt: list[int], reply: list[int]) -> str:
    """A call of the policy, as the gateway tells it."""
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "sql",
        "gen_ai.request.temperature": 1.0,
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps([answered]),
        "ltrain.policy.name": "sql",
        "ltrain.policy.version": 0,
        "ltrain.prompt_token_ids": json.dumps(prompt),
        "ltrain.response_token_ids": json.dumps(reply),
        "ltrain.response_logprobs": b64encode(pack(f"<{len(reply)}f", *reply)).decode(),
    }
    return str(rollout.emit("chat sql", "ltrain.gateway", said, process="gateway"))


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
    seen = states(tables["calls"])[1].filter(pl.col("action") == "context")
    assert sorted(seen["call_id"]) == sorted(compactions)
    credited = tables["transitions"].join(seen, "call_id")
    assert sorted(round(each, 3) for each in credited["advantage"]) == [-0.707, 0.707]
    assert set(compactions) <= set(tables["samples"]["transition_ids"].explode())
