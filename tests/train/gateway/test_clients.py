"""Clients as their users run them: LangChain, the official clients, and requests of Claude Code."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import SecretStr
from tests.fake_vllm import REASONING, logprob

from ltrain_instrument.allow import Allow

WEATHER = {
    "name": "weather",
    "description": "the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SEVERAL = 3
CLAUDE_CODE = {
    "model": "claude-sonnet-5",
    "max_tokens": 32000,
    "stream": True,
    "temperature": 1,
    "metadata": {"user_id": "user_1_account__session_2"},
    "system": [
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "tools": [
        {
            "name": "Bash",
            "description": "runs a command",
            "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
            "cache_control": {"type": "ephemeral"},
        }
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "list the files"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "a listing", "signature": "abc"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "a.py"}],
                    "is_error": False,
                },
                {
                    "type": "text",
                    "text": "think w3 call",
                    "cache_control": {"type": "ephemeral"},
                },
            ],
        },
    ],
}
"""What Claude Code sends in the second turn of a session."""


@pytest.fixture
def base(stage: Any) -> str:
    identity = stage.identity
    return f"{stage.url}/rollout/{identity.rollout}/attempt/{identity.attempt}"


@pytest.fixture
def chat(stage: Any, base: str) -> ChatOpenAI:
    key = SecretStr(stage.key(allow=tuple(Allow)))
    return ChatOpenAI(model="gpt-5", base_url=f"{base}/v1", api_key=key, max_retries=0)


@pytest.fixture
def openai(stage: Any, base: str) -> Iterator[OpenAI]:
    key = stage.key(allow=tuple(Allow))
    with OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0) as client:
        yield client


def test_langchain_calls_and_streams(chat: ChatOpenAI, stage: Any) -> None:
    whole = chat.invoke("go w3 w14")
    assert (whole.content, whole.response_metadata["model_name"]) == ("w3 w14", "gpt-5")
    streamed = "".join(str(chunk.content) for chunk in chat.stream("go w3 w14"))
    assert streamed.split() == ["w3", "w14"]
    ids = [span["attributes"]["ltrain.response_token_ids"] for span in stage.spans()]
    assert ids == ["[3,14]", "[3,14]"]


def test_langchain_binds_tools_and_reads_their_calls(chat: ChatOpenAI, vllm: Any) -> None:
    answer = chat.bind_tools([{"type": "function", "function": WEATHER}]).invoke("call")
    assert [call["args"] for call in answer.tool_calls] == [{"city": "Rome"}, {"city": "Oslo"}]
    assert vllm.requests[0]["tools"] == [{"type": "function", "function": WEATHER}]


def test_langchain_asks_for_several_choices(chat: ChatOpenAI, stage: Any) -> None:
    several = ChatOpenAI(**{**chat.model_dump(exclude_unset=True), "n": SEVERAL})
    (generations,) = several.generate([[HumanMessage("w3 vary")]]).generations
    assert [each.text for each in generations] == ["w3", "w4", "w5"]
    assert stage.spans()[0]["attributes"]["ltrain.response_token_ids"] == "[[3],[4],[5]]"


def test_openais_client_streams_several_choices(openai: OpenAI, stage: Any) -> None:
    stream = openai.chat.completions.create(
        model="gpt-5",
        messages=[{"role": "user", "content": "w3 w14 vary"}],
        n=SEVERAL,
        stream=True,
        logprobs=True,
    )
    texts, logprobs = [""] * SEVERAL, dict[int, list[float]]()
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            content = choice.logprobs.content if choice.logprobs else None
            logprobs.setdefault(choice.index, []).extend(each.logprob for each in content or ())
    assert [text.split() for text in texts] == [["w3", "w14"], ["w4", "w15"], ["w5", "w16"]]
    assert logprobs[2] == [logprob(5), logprob(16)]
    assert json.loads(stage.spans()[0]["attributes"]["ltrain.response_token_ids"])[2] == [5, 16]


def test_claude_code_streams_a_turn_with_thinking_and_tools(
    stage: Any, base: str, vllm: Any
) -> None:
    headers = {
        "authorization": f"Bearer {stage.key()}",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "user-agent": "claude-cli/2.1.0 (external, cli)",
        "x-app": "cli",
    }
    url = f"{base}/v1/messages?beta=true"
    answer = httpx.post(url, json=CLAUDE_CODE, headers=headers, timeout=30, trust_env=False)
    assert answer.status_code == 200
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(each) for each in data]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    begun = [each["content_block"] for each in events if each["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == ["thinking", "text", "tool_use", "tool_use"]
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == REASONING
    (sent,) = vllm.requests
    roles = [message["role"] for message in sent["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert sent["messages"][0]["content"] == "You are Claude Code.\n\nBe brief."
    assert sent["messages"][2]["reasoning"] == "a listing"
    assert sent["messages"][2]["tool_calls"][0]["function"]["name"] == "Bash"
    unknown = {"metadata", "thinking", "context_management", "output_config", "system"}
    assert not unknown & sent.keys()
    (span,) = stage.spans()
    assert span["attributes"]["ltrain.response_token_ids"] == "[3]"
    assert "ltrain.constrained" not in span["attributes"]
    (output,) = json.loads(span["attributes"]["gen_ai.output.messages"])
    kinds = [part["type"] for part in output["parts"]]
    assert kinds == ["reasoning", "text", "tool_call", "tool_call"]


def test_claude_code_counts_the_tokens_of_a_turn(stage: Any, base: str) -> None:
    fields = ("model", "system", "tools", "messages", "thinking")
    body = {name: CLAUDE_CODE[name] for name in fields}
    answer = httpx.post(
        f"{base}/v1/messages/count_tokens?beta=true",
        json=body,
        headers={"x-api-key": stage.key(), "anthropic-beta": "token-counting-2024-11-01"},
        timeout=30,
        trust_env=False,
    )
    assert (answer.status_code, answer.json().keys()) == (200, {"input_tokens"})
