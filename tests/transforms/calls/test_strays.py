"""Model calls that two traces of one process describe."""

import json
from collections.abc import Iterable
from time import monotonic
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis.strategies import permutations
from tests.transforms.made import span, spans

from ltrain_transforms.calls import calls, resolve_spans

Row = dict[str, Any]
LANGCHAIN, OPENAI = "openinference.instrumentation.langchain", "a.client"


def messages(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def model(name: str, at: tuple[int, int], scope: str, **more: Any) -> Row:
    """Return a root span of a model call, in a trace of its name."""
    answer, prompt = more.pop("answer", "yes"), more.pop("prompt", "right?")
    attributes = {
        "gen_ai.operation.name": "chat",
        **({"gen_ai.output.messages": messages("assistant", answer)} if answer else {}),
        **({"gen_ai.input.messages": messages("user", prompt)} if prompt else {}),
        **({"gen_ai.response.id": more.pop("id")} if "id" in more else {}),
    }
    columns = {"execution_id": None, "trace_id": name, **more}
    return span(name, attributes, at=at, scope=scope, **columns)


def keys(rows: Iterable[Row]) -> pl.DataFrame:
    """Return the keys of the model calls, as `source.call_keys` reads them."""
    found = []
    for row in rows:
        values = row["attributes"]
        if values.get("gen_ai.operation.name") != "chat":
            continue
        answer = json.loads(values.get("gen_ai.output.messages", "[]"))
        few = [f"id:{values['gen_ai.response.id']}"] if "gen_ai.response.id" in values else []
        few += [f"answer:{one['parts'][0]['content']}" for one in answer]
        few += ["error:failed"] * (row["status"] == "Error")
        found.append((row["trace_id"], row["span_id"], few))
    texts = {"trace_id": pl.String(), "span_id": pl.String()}
    return pl.DataFrame(found, {**texts, "call_keys": pl.List(pl.String)}, orient="row")


def owners(*rows: Row, execution: str = "trace") -> dict[str, str]:
    """Return the execution of each span; a span without one is left out."""
    resolved, _ = resolve_spans(spans(*rows), execution, keys(rows))
    return dict(resolved.select("span_id", "execution_id").iter_rows())


def outer(name: str = "A", at: tuple[int, int] = (0, 10), **more: Any) -> Row:
    return model(name, at, LANGCHAIN, **more)


def inner(name: str = "a", at: tuple[int, int] = (1, 9), **more: Any) -> Row:
    return model(name, at, OPENAI, **more)


@pytest.mark.parametrize("execution", ["trace", "session"])
def test_a_stray_and_its_trace_belong_to_the_execution_of_its_host(execution: str) -> None:
    below = span("POST", parent="a", trace_id="a", execution_id=None, scope="httpx")
    beside = span("GET", trace_id="a", execution_id=None, scope="httpx")
    found = owners(outer(), inner(), below, beside, execution=execution)
    assert found == {"A": "A", "a": "A", "POST": "A", "GET": "A"}
    rows, _ = resolve_spans(spans(outer(), inner()), execution, keys([outer(), inner()]))
    merged, _ = calls(rows)
    assert merged["source_spans"].to_list() == [["A", "a"]]
    assert rows["trace_id"].to_list() == ["A", "a"]


def test_an_equal_response_id_suffices_where_the_outputs_do_not_contradict() -> None:
    late = inner(at=(1, 30), id="r", answer="")
    assert owners(outer(id="r"), late)["a"] == "A"
    assert owners(outer(id="r"), inner(id="r", answer="no"))["a"] == "a"
    assert owners(outer(id="r"), inner(at=(20, 30), id="r"))["a"] == "a"


@pytest.mark.parametrize(
    "other",
    [
        {"process": "another"},
        {"process": None},
        {"sender": "another"},
        {"scope": LANGCHAIN},
        {"at": (1, 15)},
        {"answer": "no"},
        {"prompt": "left?"},
        {"id": "s"},
        {"parent": "B", "trace_id": "B"},
    ],
)
def test_what_contradicts_keeps_a_call_apart(other: Row) -> None:
    around = span(
        "B", {"openinference.span.kind": "AGENT"}, trace_id="B", execution_id=None, scope="other"
    )
    made = inner(**other) if "scope" not in other else model("a", (1, 9), **other)
    assert owners(outer(id="r"), made, around)["a"] == made["trace_id"]


def test_failed_calls_are_equal() -> None:
    failed: Row = {"answer": "", "status": "Error"}
    assert owners(outer(**failed), inner(**failed))["a"] == "A"
    assert owners(outer(), inner(**failed))["a"] == "a"


def test_a_call_with_a_client_of_its_own_is_no_host() -> None:
    nested = inner("n", trace_id="A", parent="A")
    assert owners(outer(), nested, inner())["a"] == "a"


def test_a_stray_below_a_server_leaves_the_server() -> None:
    server = span("POST", trace_id="b", execution_id=None, scope="wsgi", at=(0, 20))
    assert owners(outer(), server, inner(trace_id="b", parent="POST")) == {
        **{"A": "A", "a": "A", "POST": "b"}
    }


def test_three_instrumentations_of_a_call() -> None:
    middle = model("m", (1, 9), "a.proxy")
    assert owners(outer(), middle, inner(at=(2, 8))) == {"A": "A", "m": "A", "a": "A"}


def test_a_host_of_a_rollout_or_a_session_takes_the_stray_along() -> None:
    host = outer(rollout_id="r1", attempt="1")
    assert owners(host, inner(), execution="session") == {"A": "r1.1", "a": "r1.1"}
    assert owners(outer(session_id="s"), inner(), execution="session") == {"A": "s", "a": "s"}
    assert owners(outer(), inner(session_id="s"), execution="session") == {"A": "s", "a": "s"}


def test_the_whole_trace_follows_into_the_rollout_of_the_host() -> None:
    host = outer(rollout_id="r1", attempt="1")
    beside = span("GET", trace_id="a", execution_id=None, scope="httpx")
    assert owners(host, inner(), beside) == {"A": "r1.1", "a": "r1.1", "GET": "r1.1"}


def test_a_call_of_another_rollout_keeps_its_place() -> None:
    host = outer(rollout_id="r1", attempt="1", id="r")
    agent = {"openinference.span.kind": "AGENT"}
    above = span("ag", agent, trace_id="a", execution_id=None, rollout_id="r2", attempt="1")
    call = inner(id="r", parent="ag", rollout_id="r2", attempt="1")
    resolved, _ = resolve_spans(spans(host, above, call), "trace", keys([host, call]))
    rows = {row["span_id"]: row for row in resolved.iter_rows(named=True)}
    assert (rows["a"]["execution_id"], rows["a"]["parent_id"]) == ("r2.1", "ag")
    assert (rows["A"]["execution_id"], rows["A"]["parent_id"]) == ("r1.1", None)


@given(permutations(range(4)))
def test_a_stray_follows_its_host_into_the_trace_that_the_host_follows(order: list[int]) -> None:
    made = [
        outer("T", (18, 40), answer="later"),
        outer("H", (0, 10), trace_id="t"),
        inner("S", (1, 9)),
        model("t", (20, 30), OPENAI, answer="later"),
    ]
    found = owners(*(made[n] for n in order))
    assert found == dict.fromkeys("THSt", "T")


CONCURRENT = (
    outer("A", (0, 10)),
    outer("B", (1, 11)),
    inner("a", (2, 8)),
    inner("b", (3, 9)),
)


@given(permutations(CONCURRENT))
def test_equal_concurrent_calls_take_one_each_in_any_order(made: list[Row]) -> None:
    assert owners(*made) == {"A": "A", "a": "A", "B": "B", "b": "B"}


def instructed(name: str, at: tuple[int, int], scope: str, before: str) -> Row:
    """Return a call whose prompt ends like the others', after a system prompt of its own."""
    prompt = [
        {"role": "system", "parts": [{"type": "text", "content": before}]},
        *json.loads(messages("user", "right?")),
    ]
    row = model(name, at, scope)
    row["attributes"]["gen_ai.input.messages"] = json.dumps(prompt)
    return row


@given(permutations(range(4)))
def test_concurrent_calls_with_other_prompts_are_not_guessed(order: list[int]) -> None:
    made = [
        instructed("A", (0, 10), LANGCHAIN, "one"),
        instructed("B", (1, 11), LANGCHAIN, "two"),
        instructed("a", (2, 8), OPENAI, "two"),
        instructed("b", (3, 9), OPENAI, "one"),
    ]
    few = [made[n] for n in order]
    assert owners(*few) == {"A": "A", "B": "B"}
    _, drops = resolve_spans(spans(*few), "trace", keys(few))
    assert drops.select("id", "reason").sort("id").rows() == [
        ("a", "ambiguous_host"),
        ("b", "ambiguous_host"),
    ]


def test_the_users_messages_tell_concurrent_calls_apart() -> None:
    def conversation(name: str, at: tuple[int, int], scope: str, first: str) -> Row:
        turns = [*json.loads(messages("user", first)), *json.loads(messages("user", "right?"))]
        row = model(name, at, scope)
        row["attributes"]["gen_ai.input.messages"] = json.dumps(turns)
        return row

    found = owners(
        conversation("A", (0, 10), LANGCHAIN, "one"),
        conversation("B", (1, 11), LANGCHAIN, "two"),
        conversation("a", (2, 8), OPENAI, "two"),
        conversation("b", (3, 9), OPENAI, "one"),
    )
    assert found == {"A": "A", "B": "B", "a": "B", "b": "A"}


def test_a_host_takes_one_of_two_equal_calls() -> None:
    """The other is a call that the agent's code made without the framework."""
    found = owners(outer(), inner("a", (1, 5)), inner("b", (2, 6)))
    assert found == {"A": "A", "a": "A", "b": "b"}


def test_a_span_id_that_both_traces_have_is_a_duplicate_of_none() -> None:
    made = [outer(), inner(), span("A", parent="a", trace_id="a", execution_id=None)]
    resolved, _ = resolve_spans(spans(*made), "session", keys(made))
    assert resolved.height == 3


def test_two_calls_in_one_host_with_other_prompts_are_not_guessed() -> None:
    host = instructed("A", (0, 10), LANGCHAIN, "one")
    few = [instructed("a", (1, 5), OPENAI, "two"), instructed("b", (2, 6), OPENAI, "three")]
    assert owners(host, *few) == {"A": "A"}
    found = owners(
        host, *few, instructed("B", (3, 12), LANGCHAIN, "x"), instructed("c", (4, 11), OPENAI, "y")
    )
    assert found == {"A": "A", "B": "B", "c": "B"}


def test_damaged_messages_match_nothing() -> None:
    damaged = inner()
    damaged["attributes"]["gen_ai.input.messages"] = '[{"role": 7, "parts": {'
    assert owners(outer(), damaged)["a"] in ("a", "A")


@pytest.mark.parametrize("concurrent", [False, True])
def test_the_cost_is_linear_in_the_calls(concurrent: bool) -> None:
    made = []
    for n in range(1000):
        begin = 0 if concurrent else 20 * n
        made += [outer(f"A{n}", (begin, begin + 10)), inner(f"a{n}", (begin + 1, begin + 9))]
    begun = monotonic()
    found = owners(*made)
    assert monotonic() - begun < 60
    assert sum(found[f"a{n}"] != f"a{n}" for n in range(1000)) >= (100 if concurrent else 1000)
