"""The tools and blocks of Anthropic's messages that its clients send beside texts and functions."""

import json
from typing import Any

import anthropic
import pytest
from tests.train.gateway.apis.test_messages import client, create

from ltrain_train.gateway.tool_rules import ToolRules

__all__ = ["client"]  # a fixture

WEATHER = {"name": "weather", "input_schema": {"type": "object"}, "cache_control": None}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
COMMANDS = ["view", "create", "str_replace", "insert"]


def functions(vllm: Any) -> dict[str, Any]:
    return {each["function"]["name"]: each["function"] for each in vllm.requests[-1]["tools"]}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def test_tools_that_anthropic_defines_become_functions(client: Any, vllm: Any) -> None:
    tools: list[Any] = [
        {"type": "bash_20250124", "name": "bash", **CACHED},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "text_editor_20250124", "name": "str_replace_editor"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "custom", **WEATHER},
    ]
    create(client, "w3", tools=tools, tool_choice={"type": "tool", "name": "bash"})
    found = functions(vllm)
    assert [*found] == [tool["name"] for tool in tools]
    assert found["bash"]["parameters"]["properties"].keys() == {"command", "restart"}
    commands = {
        name: found[name]["parameters"]["properties"]["command"]["enum"]
        for name in ("str_replace_based_edit_tool", "str_replace_editor", "memory")
    }
    assert commands == {
        "str_replace_based_edit_tool": COMMANDS,
        "str_replace_editor": [*COMMANDS, "undo_edit"],
        "memory": [*COMMANDS, "delete", "rename"],
    }
    inserted = {name: "insert_text" in found[name]["parameters"]["properties"] for name in commands}
    assert inserted == {
        "str_replace_based_edit_tool": True,
        "str_replace_editor": False,
        "memory": True,
    }
    old = found["str_replace_editor"]["parameters"]["properties"]["new_str"]
    assert old["description"] == "For str_replace and insert: the new text."
    required = [found[name]["parameters"]["required"] for name in commands]
    assert required == [["command", "path"], ["command", "path"], ["command"]]
    assert vllm.requests[-1]["tool_choice"]["function"] == {"name": "bash"}


SERVER_TOOLS = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "mcp_toolset", "mcp_server_name": "x"},
]
SEARCHED: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": [{"type": "web_search_result", "url": "u", "encrypted_content": "x"}],
    },
    {"type": "code_execution_tool_result", "tool_use_id": "c", "content": {"type": "error"}},
    {"type": "redacted_thinking", "data": "x"},
]


def test_what_only_anthropic_runs_is_left_out_and_counted(
    client: Any, stage: Any, vllm: Any
) -> None:
    text = {"type": "text", "text": "found"}
    turns = [
        user({"type": "text", "text": "go"}),
        {"role": "assistant", "content": [*SEARCHED, text]},
        {"role": "assistant", "content": SEARCHED[:2]},
        user({"type": "text", "text": "w3"}),
    ]
    choice = {"type": "tool", "name": "web_search"}
    create(client, "", messages=turns, tools=SERVER_TOOLS, tool_choice=choice)
    assert [each["content"] for each in vllm.requests[-1]["messages"]] == ["go", "found", "w3"]
    assert not {"tools", "tool_choice"} & vllm.requests[-1].keys()
    (span,) = stage.spans()
    tools = ("web_search", "web_fetch", "code_execution", "mcp_toolset")
    assert json.loads(span["attributes"]["ltrain.omitted"]) == {
        **{f"tool {name}": 1 for name in tools},
        "item server_tool_use": 2,
        "item web_search_tool_result": 2,
        "item code_execution_tool_result": 1,
        "item redacted_thinking": 1,
        "item tool_choice": 1,
    }


def test_a_recipe_may_refuse_what_only_anthropic_runs(prepared_stage: Any) -> None:
    prepared_stage.tools = ToolRules("refuse")
    sent = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "w3"}]}
    with prepared_stage.running() as stage:
        refused = stage.post("/v1/messages", {**sent, "tools": SERVER_TOOLS[:1]})
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert "only Anthropic's servers run" in refused.json()["error"]["message"]


DOCUMENT = {"type": "document", "title": "T", "context": "C"}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "words"}
BLOCKS = {"type": "content", "content": [{"type": "text", "text": "words", **CACHED}]}
FOUND = {"type": "search_result", "title": "T", "source": "u"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "data:image/png;base64,AA"}}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({**DOCUMENT, "source": PLAIN}, "T\n\nC\n\nwords"),
        ({**DOCUMENT, "source": BLOCKS}, "T\n\nC\n\nwords"),
        ({**FOUND, "content": [{"type": "text", "text": "words"}]}, "T\n\nu\n\nwords"),
        ({"type": "tool_reference", "tool_name": "weather"}, "weather"),
        ({"type": "text", "text": "words", **CACHED}, "words"),
        (IMAGE, [CHAT_IMAGE]),
    ],
)
def test_results_of_tools_have_documents_and_images(
    client: Any, vllm: Any, block: dict[str, Any], part: Any
) -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": [block]}
    create(client, "", messages=[user({**result, **CACHED})])
    assert vllm.requests[-1]["messages"] == [{"role": "tool", "tool_call_id": "a", "content": part}]


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
        {"betas": ["interleaved-thinking-2025-05-14"]},
        {"cache_control": {"type": "ephemeral"}},
        {"system": [{"type": "text", "text": "be brief", **CACHED}]},
        {"tools": [{**WEATHER, **CACHED}]},
        {"output_config": {"effort": "high"}},
    ],
)
def test_what_only_anthropic_needs_has_no_effect(
    client: Any, vllm: Any, fields: dict[str, Any]
) -> None:
    headers = {"anthropic-beta": "context-management-2025-06-27"}
    create(client, "w3", extra_body=fields, extra_headers=headers)
    assert not {"thinking", "context_management", "betas", "cache_control"} & {*vllm.requests[-1]}
    assert "cache_control" not in json.dumps(vllm.requests[-1])


def test_interleaved_thinking_is_the_reasoning_of_its_turn(client: Any, vllm: Any) -> None:
    def thinking(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": text, "signature": "x"}

    def use(number: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": number, "name": "f", "input": {}}

    turns = [
        user({"type": "text", "text": "w3"}),
        {"role": "assistant", "content": [thinking("a"), use("1")]},
        user({"type": "tool_result", "tool_use_id": "1", "content": []}),
        {"role": "assistant", "content": [thinking("b"), thinking("c"), use("2")]},
        user({"type": "tool_result", "tool_use_id": "2", "content": "y"}),
    ]
    create(client, "", messages=turns)
    sent = vllm.requests[-1]["messages"]
    assert [each.get("reasoning") for each in sent] == [None, "a", None, "bc", None]
    assert [each["content"] for each in sent if each["role"] == "tool"] == ["", "y"]


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"type": "document", "source": {"type": "base64", "data": "AA"}}, "of type 'document'"),
        ({"type": "document", "source": {"type": "url", "url": "u"}}, "of type 'document'"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "of type 'image'"),
        ({"type": "image", "source": "u"}, "of type 'image'"),
        ({"type": "compaction", "content": "all before"}, "of type 'compaction'"),
        ({"type": "tool_result", "content": {"a": 1}}, "a tool_result with an object"),
        ({"type": "document", "source": {"type": "content", "content": [{}]}}, "cannot be"),
    ],
)
def test_blocks_that_a_chat_cannot_have_are_refused(
    client: Any, vllm: Any, block: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=sentence):
        create(client, "", messages=[user(block)])
    assert vllm.requests == []


@pytest.mark.parametrize("tool", [{"type": "teleport_20270101"}, {"type": "custom"}, {}])
def test_a_tool_without_a_schema_is_refused(client: Any, tool: dict[str, Any]) -> None:
    with pytest.raises(anthropic.BadRequestError, match="A tool of the request has"):
        create(client, "w3", tools=[tool])
