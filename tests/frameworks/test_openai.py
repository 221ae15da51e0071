"""The OpenAI client alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_chat_completions(run: Run) -> None:
    ran = run("frameworks", "openai_chat")
    assert (ran.code, ran.out, ran.err) == (0, "Sunny.\nOne by one.\n", "")
    assert [asked.failed for asked in ran.asked] == [True, False, False, False]
    told = [
        (call["status"], call["finish_reason"], call["output_tokens"]) for call in ran.of("llm")
    ]
    assert told == [("ok", "tool_calls", 5), ("ok", "stop", 5), ("ok", "stop", 5)]
    assert ran.executions["complete"].to_list() == [True]
