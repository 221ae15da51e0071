"""pydantic-ai: its own telemetry, which ltrain switches on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_agent(run: Run) -> None:
    ran = run("frameworks", "pydantic_ai_agent", "tools", "hard", "streamed")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "Sunny.\nno room in Bath\nOne by one.\n"
    assert [
        (call["status"], call["finish_reason"], call["output_tokens"]) for call in ran.of("llm")
    ] == [
        ("ok", "tool_calls", 5),
        ("ok", "tool_calls", 5),
        ("ok", "tool_calls", 5),
        ("ok", "stop", 5),
        ("ok", "tool_calls", 5),
        ("ok", "tool_calls", 5),
        ("ok", "stop", 5),
    ]
    assert [
        (tool["name"], tool["arguments"], tool["result"], tool["error_type"])
        for tool in ran.of("tool")
    ] == [
        ("weather", '{"city":"Paris"}', "It is sunny in Paris.", None),
        ("weather", '{"city":"Rome"}', "It is sunny in Rome.", None),
        (
            "search",
            '{"query":"places"}',
            "Say which place.",
            "pydantic_ai.exceptions.ToolRetryError",
        ),
        ("search", '{"query":"Bath"}', "Bath is a town.", None),
        ("book", '{"city":"Bath"}', None, "PermissionError"),
        ("weather", '{"city":"Rome"}', "It is sunny in Rome.", None),
    ]
    assert [(call["agent"], call["status"]) for call in ran.of("agent")] == [
        ("guide", "ok"),
        ("guide", "error"),
        ("guide", "ok"),
    ]
    completeness.check("pydantic-ai-slim", "frameworks", ran)


def test_an_agent_in_a_tool_and_an_output_type(run: Run) -> None:
    ran = run("frameworks", "pydantic_ai_agent", "sub_agent")
    assert (ran.code, ran.out, ran.err) == (0, "It is blue.\n", "")
    names = {call["call_id"]: f"{call['kind']} {call['agent']}" for call in ran.calls.to_dicts()}
    assert [
        (names[call["call_id"]], names.get(call["parent_id"])) for call in ran.calls.to_dicts()
    ] == [
        ("agent guide", None),
        ("llm guide", "agent guide"),
        ("tool guide", "agent guide"),
        ("agent forecaster", "tool guide"),
        ("llm forecaster", "agent forecaster"),
        ("llm guide", "agent guide"),
    ]
    assert ran.states.select("t", "variable", "value").rows() == [
        (1, "input", '"Tomorrow? [[forecast(city=Oslo); It is blue.]]"'),
        (2, "tool.forecast.arguments", '{"city":"Oslo"}'),
        (5, "tool.final_result.arguments", '{"city":"Oslo","sky":"blue"}'),
        (5, "tool.forecast.result", '"blue"'),
        (6, "guide.output", '"It is blue."'),
        (6, "answer", '"It is blue."'),
    ]
