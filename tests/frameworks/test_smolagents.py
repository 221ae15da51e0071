"""smolagents: tools that threads run, a stream, code, and a managed agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_agent(run: Run) -> None:
    ran = run("frameworks", "smolagents_agents", "tools", "streamed")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()  # a stream is drawn on the screen besides
    assert (lines[0], lines[-1]) == ("Sunny.", "One by one.")
    assert [
        (call["agent"], call["status"], call["finish_reason"], call["output_tokens"])
        for call in ran.of("llm")
    ] == [("guide", "ok", "tool_calls", 5)] * 4 + [("streaming_guide", "ok", "tool_calls", 5)] * 2
    assert [
        (tool["name"], tool["arguments"], tool["result"], tool["error_type"])
        for tool in ran.of("tool")
    ] == [
        ("weather", '{"city": "Paris"}', "It is sunny in Paris.", None),
        ("weather", '{"city": "Rome"}', "It is sunny in Rome.", None),
        ("book", '{"city": "Bath"}', None, "PermissionError"),
        ("book", '{"city": "Bath"}', "A room in Bath.", None),
        ("final_answer", '{"answer": "Sunny."}', "Sunny.", None),
        ("weather", '{"city": "Rome"}', "It is sunny in Rome.", None),
        ("final_answer", '{"answer": "One by one."}', "One by one.", None),
    ]
    assert [(call["agent"], call["output"]) for call in ran.of("agent")] == [
        ("guide", "Sunny."),
        ("streaming_guide", "One by one."),
    ]
    completeness.check("smolagents", "frameworks", ran)


def test_managed_agent_and_code(run: Run) -> None:
    ran = run("frameworks", "smolagents_agents", "managed", "code")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "Sunny it is.\nIt is sunny in Bath.\n"
    names = {call["call_id"]: f"{call['kind']} {call['agent']}" for call in ran.calls.to_dicts()}
    assert [
        (names[call["call_id"]], call["name"], names.get(call["parent_id"]))
        for call in ran.calls.to_dicts()
    ] == [
        ("agent desk", "desk", None),
        ("llm desk", "fake", "agent desk"),
        ("agent forecaster", "forecaster", "agent desk"),
        ("llm forecaster", "fake", "agent forecaster"),
        ("tool forecaster", "weather", "agent forecaster"),
        ("llm forecaster", "fake", "agent forecaster"),
        ("tool forecaster", "final_answer", "agent forecaster"),
        ("llm desk", "fake", "agent desk"),
        ("tool desk", "final_answer", "agent desk"),
        ("agent coder", "coder", None),
        ("llm coder", "fake", "agent coder"),
        ("tool coder", "weather", "agent coder"),
        ("tool coder", "final_answer", "agent coder"),
    ]
    assert [tool["arguments"] for tool in ran.of("tool")] == [
        '{"city": "Oslo"}',
        '{"answer": "Sunny."}',
        '{"answer": "Sunny it is."}',
        '{"city": "Bath"}',
        '{"answer": "It is sunny in Bath."}',
    ]
    asked = {call["call_id"]: call["agent"] for call in ran.of("llm")}
    assert [asked[tool["requested_by"]] for tool in ran.of("tool")] == [
        *("forecaster", "forecaster", "desk", "coder", "coder")
    ]
