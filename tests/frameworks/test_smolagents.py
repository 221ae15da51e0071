"""smolagents: tools that threads run, a stream, code, and a managed agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_agent(run: Run) -> None:
    result = run("frameworks", "smolagents_agents", "tools", "streamed")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()  # a stream is also printed
    assert (lines[0], lines[-1]) == ("Sunny.", "One by one.")
    assert describe_calls(result) == [
        "guide ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  guide ok weather(city=Paris): It is sunny in Paris.",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok tool_calls 7+5: book(city=Bath)",
        "  guide error book(city=Bath): PermissionError",
        "guide ok tool_calls 7+5: book(city=Bath)",
        "  guide ok book(city=Bath): A room in Bath.",
        "guide ok tool_calls 7+5: final_answer(answer=Sunny.)",
        "  guide ok final_answer(answer=Sunny.): Sunny.",
        "streaming_guide ok tool_calls 7+5: weather(city=Rome)",
        "  streaming_guide ok weather(city=Rome): It is sunny in Rome.",
        "streaming_guide ok tool_calls 7+5: final_answer(answer=One by one.)",
        "  streaming_guide ok final_answer(answer=One by one.): One by one.",
    ]
    assert [(call["agent"], call["output"]) for call in result.calls_of_kind("agent")] == [
        ("guide", "Sunny."),
        ("streaming_guide", "One by one."),
    ]
    completeness.check("smolagents", "frameworks", result)


def test_managed_agent_and_code(run: Run) -> None:
    result = run("frameworks", "smolagents_agents", "managed", "code")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Sunny it is.\nIt is sunny in Bath.\n"
    names = {call["call_id"]: f"{call['kind']} {call['agent']}" for call in result.calls.to_dicts()}
    assert [
        (names[call["call_id"]], call["name"], names.get(call["parent_id"]))
        for call in result.calls.to_dicts()
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
    assert describe_calls(result) == [
        "desk ok tool_calls 7+5: forecaster(task=Oslo)",
        "forecaster ok tool_calls 7+5: weather(city=Oslo)",
        "  forecaster ok weather(city=Oslo): It is sunny in Oslo.",
        "forecaster ok tool_calls 7+5: final_answer(answer=Sunny.)",
        "  forecaster ok final_answer(answer=Sunny.): Sunny.",
        "desk ok tool_calls 7+5: final_answer(answer=Sunny it is.)",
        "  desk ok final_answer(answer=Sunny it is.): Sunny it is.",
        "coder ok stop 7+5: I ask. <code>final_answer(weather('Bath'))</code>",
        "  coder ok weather(city=Bath): It is sunny in Bath.",
        "  coder ok final_answer(answer=It is sunny in Bath.): It is sunny in Bath.",
    ]
