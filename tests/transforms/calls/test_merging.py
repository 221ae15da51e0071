"""Cells of calls are made where their declarations say, and spans of one call are one row."""

import json
from typing import Any

import pytest
from tests.transforms.made import Row, span, spans

from ltrain_transforms.calls import calls
from ltrain_transforms.calls.from_spans import STATE_COLUMNS, _neighbours
from ltrain_transforms.calls.merging import CELL_NAMES, FIELD_NAMES, MergedCells, field_cells
from ltrain_transforms.dialects.partial import non_empty
from ltrain_transforms.tables import CALLS, CellSource, columns_from
from ltrain_transforms.tables.calls import CALL_COLUMNS
from ltrain_transforms.traces import read_messages, tool_requests


def names(source: CellSource) -> list[str]:
    return [column.name for column in columns_from(source)]


def test_every_column_is_made_by_its_declared_source() -> None:
    assert set(FIELD_NAMES) == set(names(CellSource.FIELD))
    assert set(MergedCells._fields) - {"tokens"} == set(names(CellSource.MERGED))
    later = [column.meta.output_name() for column in _neighbours()]
    assert set(later) - set(STATE_COLUMNS) == set(names(CellSource.NEIGHBOURS))
    assert names(CellSource.LATER) == ["choice"]
    assert names(CellSource.STATES) == ["reads", "action", "turn_index"]
    assert len(set(CELL_NAMES)) == len(CELL_NAMES)
    assert [column.name for column in CALL_COLUMNS] == CALLS.schema.names()


def test_a_declared_field_is_a_cell_without_other_code() -> None:
    merged = non_empty(kind="llm", seed=7)
    assert list(field_cells(merged, ("kind", "seed", "tier"), (None, None, "auto"))) == [
        "llm",
        7,
        "auto",
    ]


def test_a_field_that_no_span_has_gets_its_declared_default() -> None:
    defaults = {c.name: c.default for c in columns_from(CellSource.FIELD) if c.default is not None}
    expected = {"status": "ok", "constrained": False, "delivered": True, "untimed": False}
    assert defaults == expected


def chat(*requests: tuple[str, str, Any], **more: str) -> dict[str, str]:
    """Return the attributes of a chat whose answer requests tools: id, name and arguments."""
    parts = [
        {"type": "tool_call", "id": id, "name": name, "arguments": arguments}
        for id, name, arguments in requests
    ]
    answer = json.dumps([{"role": "assistant", "parts": parts}])
    return {"gen_ai.operation.name": "chat", "gen_ai.output.messages": answer, **more}


def prompt(text: str) -> dict[str, str]:
    messages = [{"role": "user", "parts": [{"type": "text", "content": text}]}]
    return {"gen_ai.input.messages": json.dumps(messages)}


STRANDS = "strands.telemetry.tracer"
RAW = '{"item": "pen", coun'
IDS = {"ltrain.prompt_token_ids": "[1]", "ltrain.response_token_ids": "[[2]]"}


def gateway(name: str, *requests: tuple[str, str, Any], **more: Any) -> Row:
    """Return the gateway's span of a call."""
    return span(name, chat(*requests, **IDS, **prompt("wrong")), scope="ltrain.gateway", **more)


def merged(*rows: Row) -> list[list[str]]:
    return sorted(calls(spans(*rows))[0]["source_spans"].to_list())


@pytest.mark.parametrize("recorded", [{}, None, "", RAW])
def test_a_request_whose_arguments_a_framework_cannot_parse_is_one_call(recorded: Any) -> None:
    framework = span(
        "chat", chat(("c1", "Order", recorded)) | prompt('[{"text": "wrong"}]'), at=(0, 9)
    )
    rows = framework | {"scope": STRANDS}, gateway("g", ("c1", "Order", RAW), parent="chat")
    [call] = calls(spans(*rows))[0].to_dicts()
    assert (call["call_id"], call["source_spans"]) == ("chat", ["chat", "g"])
    [request] = tool_requests(read_messages(call["output"]))
    assert (request.id, request.arguments) == ("c1", RAW)


@pytest.mark.parametrize(
    "other",
    [
        [("c2", "Order", RAW)],
        [("c1", "Offer", RAW)],
        [("c1", "Order", {"item": "pen"})],
        [("c1", "Order", '{"item": "pen"}')],
        [("c1", "Order", RAW), ("c2", "Order", RAW)],
        [("", "Order", RAW)],
    ],
    ids=["id", "name", "object", "json", "more", "no id"],
)
def test_a_request_without_arguments_is_no_other_request(other: list[Any]) -> None:
    empty: list[Any] = [(id and "c1", "Order", {}) for id, _, _ in other[:1]]
    framework = span("chat", chat(*empty) | prompt("right"), at=(0, 9), scope=STRANDS)
    inside = gateway("g", *other, parent="chat", at=(1, 2))
    assert merged(framework, inside) == [["chat"], ["g"]]


def test_parallel_calls_with_equal_unparsed_requests_stay_apart() -> None:
    rows = []
    for n in range(3):
        empty = chat((f"c{n}", "Order", {})) | prompt("[]")
        rows += [
            span(f"chat{n}", empty, at=(n, 20 + n), scope=STRANDS),
            gateway(f"g{n}", (f"c{n}", "Order", RAW), at=(5 + n, 9 + n)),
        ]
    nested = [row | {"parent_id": f"chat{row['span_id'][1:]}"} for row in rows[1::2]]
    expected = [[f"chat{n}", f"g{n}"] for n in range(3)]
    assert merged(*rows[::2], *nested) == expected
    # without a parent, three spans of the framework contain each of the gateway
    assert len(merged(*rows)) == 6


def tool(name: str, id: str = "", **more: Any) -> Row:
    """Return the span of a tool call, whose arguments are always the same."""
    values = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.arguments": '{"city": "Rome"}',
        "gen_ai.tool.call.id": id,
        **more.pop("values", {}),
    }
    return span(name, {key: value for key, value in values.items() if value}, **more)


@pytest.mark.parametrize("scopes", [("one", "one"), ("one", "other"), ("other", "one")])
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_tool_calls_with_ids_of_their_own_are_apart_in_any_nesting(
    scopes: tuple[str, str], order: slice
) -> None:
    batch = tool("batch", at=(0, 9), scope="a-framework")
    rome = tool("rome", "c1", parent="batch", at=(1, 8), scope=scopes[0])
    again = tool("again", "c2", parent="rome", at=(2, 7), scope=scopes[1])
    assert merged(*[rome, again][order]) == [["again"], ["rome"]]
    # a span around both, without an id, is one of them
    beside = again | {"parent_id": "batch"}
    assert len(merged(*[batch, rome, again][order])) == 2
    assert len(merged(*[batch, rome, beside][order])) == 2


def data(city: str, result: str) -> dict[str, str]:
    """Return the attributes of a tool with these data."""
    values = {"city": city}
    return {"gen_ai.tool.call.arguments": json.dumps(values), "gen_ai.tool.call.result": result}


@pytest.mark.parametrize(
    ("scope", "inner", "apart"),
    [
        ("one", data("Rome", "sunny"), False),
        ("one", data("Oslo", "snow"), True),
        ("other", data("Rome", "sunny"), False),
        ("other", data("Oslo", "sunny"), False),  # written in another way
        ("other", data("Oslo", "snow"), True),
    ],
)
def test_tools_without_ids_are_one_call_if_their_data_agree(
    scope: str, inner: dict[str, str], apart: bool
) -> None:
    outer = tool("outer", at=(0, 9), scope="one", values=data("Rome", "sunny"))
    nested = tool("nested", parent="outer", at=(1, 8), scope=scope, values=inner)
    assert (len(merged(outer, nested)) == 2) is apart


@pytest.mark.parametrize("parent", ["outer", None])
def test_equal_answers_to_two_requests_are_two_calls(parent: str | None) -> None:
    def answered(name: str, question: str, **more: Any) -> Row:
        ids = {"gen_ai.response.id": f"of-{name}"}
        return span(name, chat(("c1", "Order", {}), **prompt(question), **ids), **more)

    outer = answered("outer", "route", at=(0, 9))
    for question, apart in (("order a pen", True), ("route", False)):
        inner = answered("inner", question, parent=parent, at=(1, 8), scope="other")
        assert (len(merged(outer, inner)) == 2) is apart


RESULT = {"ltrain.untimed": "true", "gen_ai.agent.name": "main"}


def test_the_result_that_the_gateway_records_is_one_of_the_agents_own_call() -> None:
    rows = [
        tool("another", "c2", at=(0, 2)),
        tool("own", at=(2, 5), values={"gen_ai.agent.name": "forecaster"}),
        tool("result", "c1", at=(7, 7), scope="ltrain.gateway", values=RESULT),
        tool("alone", "c3", at=(8, 8), scope="ltrain.gateway", values=RESULT),
    ]
    found = {call["call_id"]: call for call in calls(spans(*rows))[0].to_dicts()}
    assert sorted(call["source_spans"] for call in found.values()) == [
        ["alone"], ["another"], ["own", "result"]
    ]  # fmt: skip
    own, alone = found["own"], found["alone"]
    assert (own["untimed"], own["agent"], own["end"]) == (False, "forecaster", rows[1]["end"])
    assert (alone["untimed"], alone["agent"]) == (True, "main")


def test_an_agents_name_comes_before_that_of_the_gateway() -> None:
    guessed = {"gen_ai.agent.name": "main"}
    rows = [
        span("run", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "solver"}),
        span("inside", chat(**IDS, **guessed), scope="ltrain.gateway", parent="run"),
        span("outside", chat(**IDS, **guessed), scope="ltrain.gateway"),
    ]
    found = calls(spans(*rows))[0]
    agents = dict(found.select("call_id", "agent").iter_rows())
    assert agents == {"run": "solver", "inside": "solver", "outside": "main"}


def test_a_tool_that_only_the_gateway_names_an_agent_for_has_that_of_its_requester() -> None:
    asking = chat(("c1", "weather", {"city": "Rome"}), **{"gen_ai.agent.name": "gemini-cli"})
    result = tool("result", "c1", at=(2, 2), scope="ltrain.gateway", values=RESULT)
    found = calls(spans(span("record", asking, at=(0, 1)), result))[0]
    assert found["agent"].to_list() == ["gemini-cli", "gemini-cli"]


def test_a_call_that_has_no_place_is_below_the_tool_call_that_delegates_it() -> None:
    delegated = {**IDS, "ltrain.delegated_by": "delegating"}
    rows = [
        tool("delegating", "c1"),
        span("run", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "solver"}),
        span("inside", chat(**delegated), scope="ltrain.gateway", parent="run"),
        span("outside", chat(**delegated), scope="ltrain.gateway"),
        span("of_none", chat(**IDS), scope="ltrain.gateway"),
    ]
    found = dict(calls(spans(*rows))[0].select("call_id", "parent_id").iter_rows())
    assert found == {
        **{"delegating": None, "run": None, "of_none": None},
        **{"inside": "run", "outside": "delegating"},
    }


def test_a_call_of_an_interrupted_client_failed_though_its_record_has_no_error() -> None:
    same = {"gen_ai.response.id": "one"}

    def merge(*statuses: str) -> tuple[str, list[str]]:
        attempts = [
            span(f"attempt{n}", chat(**same), scope="ltrain.gateway", parent="record", status=each)
            for n, each in enumerate(statuses)
        ]
        (call,) = calls(spans(span("record", chat(**same), at=(0, 9)), *attempts))[0].to_dicts()
        return call["status"], call["source_spans"]

    assert merge("Error") == ("error", ["record", "attempt0"])
    assert merge("Error", "Unset") == ("ok", ["record", "attempt0", "attempt1"])
