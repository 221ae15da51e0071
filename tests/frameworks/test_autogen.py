"""AutoGen: several traces a rollout, and its own spans beside OpenInference's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_assistant(run: Run) -> None:
    ran = run("frameworks", "autogen_team", "tools", "streamed")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "Sunny.\nNo.\nOne by one.\n"
    assert [
        (call["agent"], call["status"], call["finish_reason"], call["output_tokens"])
        for call in ran.of("llm")
    ] == [
        ("guide", "ok", "tool_calls", 5),
        ("guide", "ok", "stop", 5),
        ("guide", "ok", "tool_calls", 5),
        ("guide", "ok", "stop", 5),
        ("streaming_guide", "ok", "tool_calls", None),
        ("streaming_guide", "ok", "stop", None),
    ]
    assert [
        (tool["name"], tool["arguments"], tool["result"], tool["error_type"])
        for tool in ran.of("tool")
    ] == [
        ("weather", '{"city": "Paris"}', "It is sunny in Paris.", None),
        ("weather", '{"city": "Rome"}', "It is sunny in Rome.", None),
        ("book", '{"city": "Bath"}', "no room in Bath", "PermissionError"),
        ("nowhere", "{}", "Error: tool 'nowhere' not found in any workbench", "tool_error"),
        ("weather", '{"city": "Rome"}', "It is sunny in Rome.", None),
    ]
    assert [call["agent"] for call in ran.of("agent")] == ["guide", "guide", "streaming_guide"]
    completeness.check("autogen-agentchat", "frameworks", ran)


def test_swarm(run: Run) -> None:
    ran = run("frameworks", "autogen_team", "swarm")
    assert (ran.code, ran.out, ran.err) == (0, "Sunny. Good day.\n", "")
    assert [(call["kind"], call["name"], call["agent"]) for call in ran.calls.to_dicts()] == [
        ("node", "Swarm.run_stream", None),
        ("agent", "desk", "desk"),
        ("llm", "fake", "desk"),
        ("tool", "forward", "desk"),
        ("agent", "forecaster", "forecaster"),
        ("llm", "fake", "forecaster"),
        ("tool", "weather", "forecaster"),
        ("llm", "fake", "forecaster"),
    ]
    known = '"It is yours. [[weather(city=Oslo); Sunny. Good day.]]"'
    assert ran.states.select("t", "variable", "value").rows() == [
        (0, "input", '"Tomorrow? [[forward()]]"'),
        (1, "desk.input", '"Tomorrow? [[forward()]]"'),
        (3, "tool.forward.arguments", "{}"),
        (4, "tool.forward.result", known),
        (4, "forecaster.input", known),
        (6, "tool.weather.arguments", '{"city":"Oslo"}'),
        (7, "tool.weather.result", '"It is sunny in Oslo."'),
        (8, "forecaster.output", '"Sunny. Good day."'),
        (8, "answer", '"Sunny. Good day."'),
    ]
    assert ran.executions["complete"].to_list() == [True]
    assert ran.executions["traces"].to_list() == [3]  # each agent's making is a trace of its own
