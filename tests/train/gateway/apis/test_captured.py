"""Requests that real clients sent, cleaned of their users' paths and long texts.

`captured/NAME.json` has the last request of a conversation with tools, of the client of this name.
`anthropic_api` was written by the published API.
"""

import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "captured"
PATHS = {
    "codex": "/v1/responses",
    "codex_gpt": "/v1/responses",
    "gemini_cli": "/v1beta/models/policy:streamGenerateContent",
    "anthropic_api": "/v1/messages",
    **dict.fromkeys(("opencode", "qwen_code", "mini_swe_agent"), "/v1/chat/completions"),
}
"""The API of each client; codex_gpt is Codex with a model that it knows."""
OMITTED: dict[str, dict[str, int]] = {
    "codex": {"tool web_search": 1},
    "codex_gpt": {"tool web_search": 1, "grammar apply_patch": 1},
    "anthropic_api": {"tool web_search": 1},
    "gemini_cli": {"item thoughtSignature": 2},  # marks of the client
}


@pytest.mark.parametrize("name", PATHS)
def test_a_request_of_a_real_client_can_be_trained(stage: Any, vllm: Any, name: str) -> None:
    for body in json.loads((HERE / f"{name}.json").read_text()):
        answer = stage.post(PATHS[name], {**body, "model": "policy"})
        assert answer.status_code == 200, answer.text
        sent = vllm.requests[-1]
        called = {
            call["id"]: call["function"]["name"]
            for message in sent["messages"]
            for call in message.get("tool_calls", ())
        }
        results = [each["tool_call_id"] for each in sent["messages"] if each["role"] == "tool"]
        assert results == [*called]
        assert {*called.values()} <= {tool["function"]["name"] for tool in sent["tools"]}
        assert [each["role"] for each in sent["messages"][:2]] == ["system", "user"]
    omitted = stage.spans()[-1]["attributes"].get("ltrain.omitted", "{}")
    assert json.loads(omitted) == OMITTED.get(name, {})
