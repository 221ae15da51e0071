"""The place of a call in its conversation: sessions, sub-agents, agents and bad requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import TracerProvider

from ltrain_train.gateway.apis import ClientCall, RequestLimits
from ltrain_train.gateway.apis.completions import CHAT
from ltrain_train.gateway.conversations import (
    Conversations,
    chains,
    delegations,
    open_conversations,
)

Message = dict[str, Any]
TOOLS = ["bash", "read", "Task"]


class Gateway:
    """Places calls, and returns trace, session and agent."""

    def __init__(self, folder: Path | None = None) -> None:
        found = open_conversations(TracerProvider(), _end, folder)
        assert found is not None
        self.conversations: Conversations = found.production

    def send(
        self,
        messages: list[Message],
        answer: Message | None = None,
        key: str = "k",
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> tuple[int, str, str]:
        tools = body.pop("tools", TOOLS)
        functions = [{"type": "function", "function": {"name": name}} for name in tools]
        sent = {"model": "m", "messages": messages, "tools": functions, **body}
        call: ClientCall = CHAT.parse(orjson.dumps(sent), RequestLimits())
        placement = self.conversations.place(call, headers or {}, key)
        if answer is not None:
            placement.answer([answer])
        placement.leave()
        with placement.starting():
            trace = self.conversations.ids.generate_trace_id()
        session, agent, *_ = placement.attributes.values()
        return trace, session, agent


def _end(end: Callable[[], None]) -> None:
    end()


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, *calls: tuple[str, str, str]) -> Message:
    requested = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": requested} if calls else {})}


def result(id: str, text: str = "x") -> Message:
    return {"role": "tool", "tool_call_id": id, "content": text}


MAIN = system("You are an agent. Today is 2026-11-29.")
TASK = '{"subagent_type": "search", "prompt": "Find every call of the old function."}'


def test_what_clients_rewrite_does_not_matter() -> None:
    gateway = Gateway()
    first = gateway.send(
        [MAIN, user("go, 2026-11-29")], answer(" ok ", ("a", "bash", '{"x":1,"y":2}'))
    )
    thought = answer("<think>hm</think>ok", ("a", "bash", '{ "y": 2, "x": 1 }'))
    marked = {**user("go, 2026-11-30"), "cache_control": {"type": "ephemeral"}}
    again = [system("You are an agent. Today is 2026-11-30."), marked, thought, result("a")]
    assert gateway.send(again, answer("done")) == first


def test_an_edited_question_is_a_fork_and_another_opening_is_not() -> None:
    gateway = Gateway()
    opening = [MAIN, user("go")]
    first = gateway.send(opening, answer("ok"))
    for text in ("a", "b", "a"):
        assert gateway.send([*opening, answer("ok"), user(text)], answer("fine")) == first
    assert gateway.send([MAIN, user("other"), answer("ok"), user("a")])[0] != first[0]


def test_chains_that_become_equal_stay_apart() -> None:
    gateway = Gateway()
    histories = [[MAIN, user("go")] for _ in range(2)]
    traces: list[set[int]] = [set(), set()]
    for turn in range(4):
        for number, history in enumerate(histories):
            spoken = answer(f"{turn}-{number}" if turn == 0 else "same")
            traces[number].add(gateway.send(history, spoken)[0])
            history += [spoken, user("go on")]
    assert [len(each) for each in traces] == [1, 1] and traces[0] != traces[1]


def test_a_failed_first_request_is_retried_in_its_conversation() -> None:
    gateway = Gateway()
    first = gateway.send([user("go")])
    assert gateway.send([user("go")], answer("ok")) == first
    assert gateway.send([user("go")], answer("ok")) != first


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"session_id": "s-1"}, {}),
        ({"x-session-affinity": "s-1"}, {}),
        ({}, {"metadata": {"user_id": "user_ab_account__session_s-1111111"}}),
        ({}, {"metadata": {"user_id": '{"session_id": "s-1"}'}}),
        ({}, {"prompt_cache_key": "s-1"}),
    ],
)
def test_utility_calls_are_in_the_session_that_the_client_names(
    headers: dict[str, str], body: dict[str, Any]
) -> None:
    gateway = Gateway()
    titles = [system("Generate a title for the conversation."), user("go")]
    one = gateway.send(titles, answer("t"), headers=headers, tools=[], **body)
    other = gateway.send([MAIN, user("go")], answer("ok"), headers=headers, **body)
    assert one[:2] == other[:2] and (one[2], other[2]) == ("utility-1", "main")
    assert gateway.send([MAIN, user("new")], answer("ok"))[0] != other[0]


def test_a_session_id_that_everybody_sends_is_disbelieved() -> None:
    gateway = Gateway()
    headers, ends = {"session_id": "default"}, []
    for number in range(6):
        opening = [MAIN, user(f"task {number}")]
        first = gateway.send(opening, answer("ok"), headers=headers)
        ends.append((first, [*opening, answer("ok"), user("more")]))
        for begun, history in ends:  # all go on, interleaved
            assert gateway.send(history, answer("ok"), headers=headers) == begun
    traces = [first[0] for first, _ in ends]
    assert traces[0] == traces[1] and len(set(traces)) == 5


def test_a_sub_agent_is_below_the_tool_call_for_which_it_works() -> None:
    gateway = Gateway()
    opening, delegated = [MAIN, user("go")], answer("", ("a", "Task", TASK))
    first = gateway.send(opening, delegated)
    other = gateway.send(
        [MAIN, user("else")], answer("", ("b", "Task", TASK.replace("old", "new")))
    )
    task = [system("You search."), user("<context/>\nFind every call of the old function.")]
    child = gateway.send(task, answer("found"), tools=["read"])
    assert child[:2] == first[:2] != other[:2] and child[2] == "search"
    assert gateway.send([*opening, delegated, result("a")], answer("done")) == first
    later = gateway.send([MAIN, user("unrelated")], answer("ok"))
    assert later[0] not in (first[0], other[0]) and later[2] == "main"


def test_an_agent_that_runs_beside_its_caller_is_below_the_call_that_began_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway, now = Gateway(), [1e9]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    opening, delegated = [MAIN, user("go")], answer("", ("a", "Task", TASK))
    first = gateway.send(opening, delegated)
    gateway.send([*opening, delegated, result("a", "It is started.")], answer("fine"))
    task = [MAIN, user("Find every call of the old function.")]
    child = gateway.send(task, answer("found"))
    assert child == (*first[:2], "search")
    assert gateway.send(task, answer("found"))[2] == "main"  # the call has its agent
    gateway.send([MAIN, user("x")], delegated)
    gateway.send([MAIN, user("x"), delegated, result("a")], answer("fine"))
    now[0] += 61
    assert gateway.send(task, answer("found"))[2] == "main"


def test_a_summary_in_the_place_of_the_history_stays_in_the_session() -> None:
    gateway, headers = Gateway(), {"session-id": "s-1"}
    opening, called = [MAIN, user("<context/>"), user("go")], answer("", ("a", "bash", "{}"))
    first = gateway.send(opening, called, headers=headers)
    asking = [*opening, called, result("a"), user("Create a handoff summary.")]
    assert gateway.send(asking, answer("It ran bash."), headers=headers, tools=[]) == first
    shorter = [*opening, user("A summary: it ran bash.")]
    assert gateway.send(shorter, answer("done"), headers=headers)[1:] == ("s-1", "main")


def test_a_tool_call_in_an_answer_to_a_request_without_tools_runs_no_agent() -> None:
    gateway = Gateway()
    headers = {"session_id": "s-1"}
    titles = [system("Generate a title for the conversation."), user("go")]
    one = gateway.send(titles, answer("", ("a", "Task", TASK)), headers=headers, tools=[])
    other = gateway.send([MAIN, user("go")], answer("ok"), headers=headers)
    assert one[:2] == other[:2] and (one[2], other[2]) == ("utility-1", "main")


def test_agents_are_named_in_the_order_of_their_use_also_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        gateway = Gateway(tmp_path)
        names = [
            gateway.send([user("quota")], answer("x"), tools=[], max_tokens=1)[2],
            gateway.send([system("You plan."), user("go")], answer("x"), tools=TOOLS[:2])[2],
            gateway.send([MAIN, user("go")], answer("x"))[2],
            gateway.send([system("Summarize the conversation."), user("x")], tools=[])[2],
            gateway.send([system("You draw."), user("x")], tools=["paint"])[2],
            gateway.send([MAIN, user("z")], answer("x"), headers={"x-agent-name": "Reviewer"})[2],
        ]
        assert names == ["utility-1", "main", "main", "utility-2", "utility-3", "Reviewer"]
        gateway.conversations.close()


def test_a_conversation_ends_when_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_CONVERSATION_IDLE", "3600")
    gateway, now = Gateway(), [1e9]
    monkeypatch.setattr("time.time", lambda: now[0])
    opening, headers = [user("go")], {"session_id": "s"}
    first = gateway.send(opening, answer("ok"), headers=headers)
    now[0] += 3000
    history = [*opening, answer("ok"), user("more")]
    assert gateway.send(history, answer("fine"), headers=headers) == first
    now[0] += 3700
    later = [*history, answer("fine"), user("late")]
    assert gateway.send(later, answer("ok"), headers=headers)[1] == "s.2"


def test_the_index_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "MAX_CHAINS", 8)
    monkeypatch.setattr(chains, "MAX_CHAIN_LINKS", 4)
    gateway = Gateway()
    for number in range(20):
        history = [user(f"go {number}")]
        for turn in range(6):
            gateway.send(history, answer(f"{turn}"))
            history += [answer(f"{turn}"), user("more")]
    index = gateway.conversations._index
    assert len(index._chains) <= 9 and index._size <= 9 * 4
    assert sum(map(len, index._links.values())) == index._size


def test_calls_of_owners_that_are_gone_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegations, "MAX_OWNERS", 4)
    gateway, delegated = Gateway(), answer("", ("a", "Task", TASK))
    for number in range(20):
        key = f"attempt {number}"
        gateway.send([MAIN, user("go")], delegated, key=key)
        gateway.send([MAIN, user("go"), delegated, result("a")], delegated, key=key)
    found = gateway.conversations.delegations
    assert (len(found._waiting), len(found._launched)) == (4, 4)


@pytest.mark.parametrize(
    "messages",
    [
        [answer("x", ("a", "bash", "{")), result("a"), result("a"), result("unknown")],
        [user("x"), {"role": "assistant", "content": None, "tool_calls": [{"id": None}]}],
        [system("s")] * 50,
        [user("x"), {"role": "assistant", "content": [{"type": "text"}, {"type": "image_url"}]}],
        [user("é\u2028" * 5_000_000), answer("ok"), user("more")],
    ],
)
def test_odd_messages_are_placed(messages: list[Message]) -> None:
    gateway = Gateway()
    first = gateway.send(messages, {"role": "assistant", "content": None})
    again = gateway.send([*messages, user("y")], answer("", ("", "", "")), tools=[])
    assert first[1].startswith("conv-") and again[1].startswith("conv-")
