"""The tools of a responses request become functions, and their calls come back as the API's items.

Shapes of tools and items are those of OpenAI's API and of Codex 0.171.
"""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from ltrain_instrument.tokens import unchanged_request
from ltrain_train.gateway.apis import RequestLimits
from ltrain_train.gateway.apis.responses import RESPONSES
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.tool_rules import ToolRules

SCHEMA = {"type": "object", "properties": {"target": {"type": "string"}}}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SCHEMA, **fields}


def namespace(name: str, *tools: dict[str, Any], description: str = "") -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": description, "tools": [*tools]}


LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
PATCH = {"type": "custom", "name": "patch", "description": "Edits.", "format": LARK}
LOCAL_SHELL, SHELL, APPLY_PATCH = ({"type": n} for n in ("local_shell", "shell", "apply_patch"))
SEARCH = {"type": "tool_search", "execution": "client", "parameters": SCHEMA}
AGENTS = namespace("agents", function("close"), function("wait", strict=False), description="Both.")
TOOLS = [function("look"), AGENTS, PATCH, LOCAL_SHELL, SHELL, APPLY_PATCH, SEARCH]
OPERATION = {"type": "update_file", "path": "a.py", "diff": "@@"}
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("look", '{"a": 1}', {"type": "function_call", "name": "look", "arguments": '{"a": 1}'}),
    (
        "agents__close",
        "{}",
        {"type": "function_call", "name": "close", "namespace": "agents", "arguments": "{}"},
    ),
    (
        "patch",
        '{"input": "a\\nb"}',
        {"type": "custom_tool_call", "name": "patch", "input": "a\nb"},
    ),
    (
        "local_shell",
        '{"command": ["ls", "-l"], "timeout_ms": 5}',
        {
            "type": "local_shell_call",
            "action": {"type": "exec", "env": {}, "command": ["ls", "-l"], "timeout_ms": 5},
        },
    ),
    (
        "shell",
        '{"commands": ["ls"]}',
        {"type": "shell_call", "action": {"commands": ["ls"]}},
    ),
    ("apply_patch", json.dumps(OPERATION), {"type": "apply_patch_call", "operation": OPERATION}),
    (
        "tool_search",
        '{"query": "x"}',
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}},
    ),
]
"""The name and arguments that the model writes, and the item that the client gets."""
BUILT_IN = {"local_shell", "shell", "apply_patch", "tool_search"}


@pytest.fixture
def client(stage: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def parse(tools: list[Any], items: Any = "go", **fields: Any) -> Any:
    body = {"model": "policy", "input": items, "tools": tools, **fields}
    return RESPONSES.parse(json.dumps(body).encode(), RequestLimits())


def functions(tools: list[Any], **fields: Any) -> list[dict[str, Any]]:
    return [each["function"] for each in parse(tools, **fields).body.get("tools", ())]


def chat(name: str, arguments: str, reason: str = "tool_calls") -> dict[str, Any]:
    call = {"id": "c", "index": 0, "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"id": "chatcmpl-1", "choices": [{"message": message, "finish_reason": reason}]}


def answer(tools: list[Any], name: str, arguments: str) -> dict[str, Any]:
    """Return the item of the response to a call of the model."""
    call = parse(tools)
    converted = call.answer(unchanged_request("chat", call.body, "policy"))
    response = json.loads(converted.complete(json.dumps(chat(name, arguments)).encode())[1])
    (item,) = response["output"]
    return dict(item)


def streamed(tools: list[Any], name: str, arguments: str) -> list[dict[str, Any]]:
    """Return the events of a call whose arguments come in two pieces."""
    call = parse(tools, stream=True)
    converted = call.answer(unchanged_request("chat", call.body, "policy"))
    first = {"index": 0, "id": "c", "function": {"name": name, "arguments": arguments[:4]}}
    deltas = [{"tool_calls": [each]} for each in (first, {"index": 0, "function": {}})]
    deltas[1]["tool_calls"][0]["function"] = {"arguments": arguments[4:]}
    chunks = [{"id": "chatcmpl-1", "choices": [{"delta": delta}]} for delta in deltas]
    events = b"".join(converted.chunk(json.dumps(each).encode())[1] for each in chunks)
    lines = (events + converted.end()).decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_tools_become_functions() -> None:
    found = {each["name"]: each for each in functions(TOOLS)}
    assert [*found] == [name for name, _, _ in CALLS[:2]] + ["agents__wait"] + [
        name for name, _, _ in CALLS[2:]
    ]
    assert found["look"] == {"name": "look", "parameters": SCHEMA}
    assert found["agents__close"]["description"] == "Both."
    assert found["agents__wait"] == {
        "name": "agents__wait",
        "parameters": SCHEMA,
        "strict": False,
    }
    text = {"type": "string", "description": 'Text of this lark grammar:\nstart: "a"'}
    assert found["patch"] == {
        "name": "patch",
        "description": "Edits.",
        "parameters": {"type": "object", "properties": {"input": text}, "required": ["input"]},
    }
    assert found["tool_search"]["parameters"] == SCHEMA
    assert parse(TOOLS).omitted.counts() == {"grammar patch": 1}


@pytest.mark.parametrize(("name", "arguments", "item"), CALLS, ids=[name for name, *_ in CALLS])
def test_a_call_comes_back_as_an_item_of_its_tool(
    name: str, arguments: str, item: dict[str, Any]
) -> None:
    received = answer(TOOLS, name, arguments)
    assert received.pop("id").endswith("_1_0")
    assert received == {**item, "call_id": "c", "status": "completed"}
    history = [received, {"type": f"{received['type']}_output", "call_id": "c", "output": "w"}]
    if name == "tool_search":
        history[1] = {"type": "tool_search_output", "call_id": "c", "tools": [AGENTS]}
        history[1]["execution"] = "client"
    sent, result = parse(TOOLS, history).body["messages"]
    written = {"name": name, "arguments": arguments}
    assert sent["tool_calls"] == [{"id": "c", "type": "function", "function": written}]
    assert (result["role"], result["tool_call_id"]) == ("tool", "c")


@pytest.mark.parametrize(("name", "arguments", "item"), CALLS, ids=[name for name, *_ in CALLS])
def test_a_stream_has_the_events_of_the_tool(
    name: str, arguments: str, item: dict[str, Any]
) -> None:
    events = streamed(TOOLS, name, arguments)
    by_kind = {event["type"].removeprefix("response."): event for event in events}
    done = by_kind["output_item.done"]["item"]
    assert {key: done[key] for key in item} == item
    assert by_kind["completed"]["response"]["output"] == [done]
    pieces = [event["delta"] for event in events if event["type"].endswith(".delta")]
    if name == "patch":
        assert pieces == ["a\nb"]
        assert by_kind["custom_tool_call_input.done"]["input"] == "a\nb"
    elif name in BUILT_IN:
        assert pieces == []
    else:
        assert pieces == [each for each in (arguments[:4], arguments[4:]) if each]
        assert by_kind["function_call_arguments.done"]["arguments"] == arguments


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize("arguments", ["no JSON", "[1]", '{"command": "ls", "commands": [1]}'])
def test_arguments_without_the_form_of_the_tool_are_a_call_of_a_function(
    name: str, arguments: str
) -> None:
    received = answer(TOOLS, name, arguments)
    if name == "tool_search" and arguments.startswith("{"):
        assert received["arguments"] == json.loads(arguments)
        return
    assert (received["type"], received["name"], received["arguments"]) == (
        "function_call",
        name,
        arguments,
    )


def test_text_that_is_not_json_is_the_input_of_a_custom_tool() -> None:
    assert answer(TOOLS, "patch", "*** Begin")["input"] == "*** Begin"
    assert answer(TOOLS, "patch", '{"input": 7}')["input"] == '{"input": 7}'


def test_calls_after_a_buffered_call_keep_their_order() -> None:
    call = parse(TOOLS, stream=True)
    converted = call.answer(unchanged_request("chat", call.body, "policy"))
    for index, name in enumerate(("patch", "look")):
        piece = {"index": index, "id": name, "function": {"name": name, "arguments": "{}"}}
        chunk = {"id": "chatcmpl-1", "choices": [{"delta": {"tool_calls": [piece]}}]}
        converted.chunk(json.dumps(chunk).encode())
    converted.end()
    assert [item["call_id"] for item in converted.whole()["output"]] == ["patch", "look"]


def test_names_of_several_tools_get_a_hash_that_their_order_does_not_change() -> None:
    tools = [namespace("a", function("b__c")), namespace("a__b", function("c")), function("f")]
    names = [each["name"] for each in functions(tools)]
    assert names == ["a__b__c_5e844bb7", "a__b__c_92415b7b", "f"]
    assert sorted(names) == sorted(each["name"] for each in functions(tools[::-1]))
    assert all(name.startswith("a__b__c_") for name in names[:2])
    for name, (space, inner) in zip(names, (("a", "b__c"), ("a__b", "c")), strict=False):
        received = answer(tools, name, "{}")
        assert (received["namespace"], received["name"]) == (space, inner)


def test_a_name_has_64_characters_that_openai_allows() -> None:
    tools = [namespace("mcp.server", function("x" * 70)), namespace("é", function("f"))]
    long, short = (each["name"] for each in functions(tools))
    assert (len(long), short) == (64, "___f")
    assert long.startswith("mcp_server__xxx")
    assert answer(tools, long, "{}")["name"] == "x" * 70
    history = [{"type": "function_call", "namespace": "mcp.server", "name": "x" * 70}]
    for known in (tools, []):  # a tool may be gone from the request
        (message,) = parse(known, history).body["messages"]
        assert message["tool_calls"][0]["function"]["name"] == long


def test_a_function_and_a_custom_tool_of_one_name_stay_apart() -> None:
    tools = [function("patch"), PATCH]
    plain, custom = (each["name"] for each in functions(tools))
    assert plain == "patch"
    assert answer(tools, plain, "{}")["type"] == "function_call"
    assert answer(tools, custom, '{"input": "x"}')["type"] == "custom_tool_call"


def test_a_tool_cannot_take_the_name_of_another() -> None:
    taken = functions([namespace("a", function("b__c")), namespace("a__b", function("c"))])
    hostile = function(taken[0]["name"])
    with pytest.raises(Refused, match="Two tools of the request get the name 'a__b__c_"):
        parse([namespace("a", function("b__c")), namespace("a__b", function("c")), hostile])


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", "required"),
        ({"type": "function", "name": "close", "namespace": "agents"}, "agents__close"),
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "apply_patch"}, "apply_patch"),
        ({"type": "shell"}, "shell"),
        ({"type": "web_search_preview"}, None),
    ],
)
def test_choices_of_tools(choice: Any, expected: str | None) -> None:
    body = parse(TOOLS, tool_choice=choice).body
    if isinstance(choice, str) or expected is None:
        assert body.get("tool_choice") == expected
    else:
        assert body["tool_choice"] == {"type": "function", "function": {"name": expected}}


def test_allowed_tools_are_the_tools_of_the_chat() -> None:
    allowed = [{"type": "custom", "name": "patch"}, {"type": "mcp", "server_label": "x"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    body = parse(TOOLS, tool_choice=choice).body
    assert [each["function"]["name"] for each in body["tools"]] == ["patch"]
    assert body["tool_choice"] == "required"


SERVER_TOOLS: list[dict[str, Any]] = [
    *({"type": "web_search_preview_2025_03_11"}, {"type": "file_search", "vector_store_ids": []}),
    *({"type": "image_generation"}, {"type": "computer_use_preview"}, {"type": "mcp"}),
    *({"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "tool_search"}),
]
SERVER_ITEMS: list[Any] = [
    {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
    {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t", "input_schema": {}}]},
    {"type": "image_generation_call", "id": "i", "result": "AA", "action": "edit"},
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
    {"type": "tool_search_call", "arguments": {"query": "x"}, "execution": "server"},
    {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAAA"},
    {"role": "user", "content": "w3"},
]


def test_what_only_openai_runs_is_left_out_and_counted(client: Any, stage: Any, vllm: Any) -> None:
    client.responses.create(
        model="policy", input=SERVER_ITEMS, tools=SERVER_TOOLS, tool_choice="auto"
    )
    assert vllm.requests[-1]["messages"] == [{"role": "user", "content": "w3"}]
    assert not {"tools", "tool_choice"} & vllm.requests[-1].keys()
    client.responses.create(model="policy", input="w3", tools=[function("look"), *SERVER_TOOLS[:1]])
    assert [each["function"]["name"] for each in vllm.requests[-1]["tools"]] == ["look"]
    first, second = (json.loads(each["attributes"]["ltrain.omitted"]) for each in stage.spans())
    tools = ["web_search", "file_search", "image_generation", "computer", "mcp"]
    items = ["web_search_call", "mcp_list_tools", "image_generation_call", "computer_call_output"]
    items += ["tool_search_call", "encrypted reasoning"]
    assert first == {
        **{f"tool {name}": 1 for name in (*tools, "code_interpreter", "tool_search")},
        **{f"item {name}": 1 for name in items},
    }
    assert second == {"tool web_search": 1}


def test_a_recipe_may_refuse_what_only_openai_runs(prepared_stage: Any, vllm: Any) -> None:
    prepared_stage.tools = ToolRules("refuse")
    sent = {"model": "policy", "input": "w3", "tools": SERVER_TOOLS[:1]}
    with prepared_stage.running() as stage:
        refused = stage.post("/v1/responses", sent)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "A tool of the request has the type 'web_search', which only OpenAI's servers run. Remove "
        'it, or set serve.unsupported_tools = "drop" (`ltrain serve --unsupported-tools drop`).'
    )
    assert vllm.requests == []


def test_the_log_names_a_tool_once_for_each_attempt_and_once_in_production(
    prepared_stage: Any,
) -> None:
    lines: list[str] = []
    prepared_stage.tools = ToolRules(log=lines.append)
    sent = {"model": "policy", "input": "w3", "tools": SERVER_TOOLS[:1]}
    with prepared_stage.running() as stage:
        for identity in (stage.identity, stage.identity, None, None):
            assert stage.post("/v1/responses", sent, identity=identity).status_code == 200
    left_out = "The tool 'web_search' is left out: only OpenAI's servers run it. The call goes on "
    assert lines == [
        f"rollout abc, attempt 1: {left_out}without it.",
        f"production: {left_out}without it.",
    ]


def test_reasoning_comes_back_from_clients_that_keep_it_encrypted(client: Any, vllm: Any) -> None:
    include: Any = ["reasoning.encrypted_content"]
    response = client.responses.create(model="policy", input="think w3", include=include)
    reasoning, text = response.output
    kept: Any = {"type": "reasoning", "id": "r", "summary": []}
    kept["encrypted_content"] = reasoning.encrypted_content
    client.responses.create(model="policy", input=[kept, text.to_dict()])
    assert vllm.requests[-1]["messages"][0]["reasoning"] == "let me see"
    kept["encrypted_content"] += "!"
    client.responses.create(model="policy", input=[kept, text.to_dict()])
    assert "reasoning" not in vllm.requests[-1]["messages"][0]


@pytest.mark.parametrize(
    "hostile",
    [
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]}]},
        {"tools": [{"type": "namespace", "tools": 7}]},
        {"tools": [{"type": "custom", "format": {"type": "grammar", "definition": ["x"]}}]},
        {"tools": [{"type": ["function"]}]},
        {"tool_choice": {"type": ["shell"]}},
        {"tool_choice": {"type": "allowed_tools", "tools": [7]}},
        {"input": [{"type": "custom_tool_call", "input": {"a": 1}}]},
        {"input": [{"type": "compaction", "encrypted_content": "x"}]},
        {"input": [{"type": "shell_call_output", "call_id": "c", "output": [{"text": 7}]}]},
    ],
)
def test_hostile_shapes_are_refused(client: Any, hostile: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        client.post("/responses", body={"model": "m", "input": "w3", **hostile}, cast_to=object)


def test_tools_of_namespaces_count_as_items(client: Any) -> None:
    tools = [namespace("n", *[function(f"f{number}") for number in range(8192)])]
    with pytest.raises(openai.APIStatusError, match="at most 8,192 messages, parts, tools"):
        client.responses.create(model="policy", input="w3", tools=tools)
