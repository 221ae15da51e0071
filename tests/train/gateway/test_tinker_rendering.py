"""Prompts and answers of a model that `renderers` knows by its name."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.tinker_model import write_model

from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.tinker_server.rendering import Rendering
from ltrain_train.gateway.tinker_server.request import SampledRequest

QWEN = "Qwen/Qwen3-8B"
OPENING = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Rendering:
    folder = tmp_path_factory.mktemp("qwen")
    write_model(folder, base_model=QWEN)
    return Rendering(folder, f"{QWEN}:peft")


def request(**more: Any) -> SampledRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    return SampledRequest.parse("chat", orjson.dumps(body))


def text(rendering: Rendering, ids: list[int]) -> str:
    return str(rendering.tokenizer.decode(ids))


def ids(rendering: Rendering, answer: str) -> list[int]:
    return list(rendering.tokenizer.encode(answer))


def test_a_known_model_is_rendered_by_its_own_code(rendering: Rendering, tmp_path: Path) -> None:
    assert rendering.is_known
    assert text(rendering, rendering.render(request())) == OPENING
    assert [rendering.token(each) for each in rendering.stop_ids] == ["<|im_end|>", "<|endoftext|>"]
    write_model(tmp_path / "other")
    assert not Rendering(tmp_path / "other", "someone/else").is_known
    own = Rendering(tmp_path / "other", QWEN, template="{{ messages[0]['content'] }}")
    assert not own.is_known and text(own, own.render(request())) == "hi"


def test_options_of_the_template_are_applied_or_refused(rendering: Rendering) -> None:
    quick = request(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert text(rendering, rendering.render(quick)) == f"{OPENING}<think>\n\n</think>\n\n"
    with pytest.raises(Refused, match="The chat template has no such options"):
        rendering.render(request(chat_template_kwargs={"loud": True}))


def test_thinking_and_tool_calls_of_a_known_model_are_parsed(rendering: Rendering) -> None:
    call_request, prompt = request(tools=TOOLS), rendering.render(request(tools=TOOLS))
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    answer = f"<think>\nhm\n</think>\n\nSo:\n{call}<|im_end|>"
    parsed = rendering.parse(call_request, prompt, ids(rendering, answer))
    assert (parsed.content, parsed.reasoning) == ("So:", "hm")
    assert [each["function"] for each in parsed.calls] == [{"name": "add", "arguments": '{"a":1}'}]
    broken = rendering.parse(
        call_request, prompt, ids(rendering, "<tool_call>\n{oops\n</tool_call>")
    )
    assert "{oops" in broken.content and not broken.calls


def test_earlier_turns_with_calls_and_thinking_are_rendered(rendering: Rendering) -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    rendered = text(rendering, rendering.render(request(messages=messages)))
    assert "<|im_start|>user\na\nb<|im_end|>" in rendered
    assert "<think>\nhm\n</think>" in rendered
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in rendered
    assert "<tool_response>\n2\n</tool_response>" in rendered
