"""pydantic-ai: its own telemetry, which ltrain switches on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness, exported
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_agent(run: Run) -> None:
    result = run("frameworks", "pydantic_ai_agent", "tools", "hard", "streamed")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Sunny.\nno room in Bath\nOne by one.\n"
    assert describe_calls(result) == [
        "guide ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  guide ok weather(city=Paris): It is sunny in Paris.",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok tool_calls 7+5: search(query=places)",
        "  guide error search(query=places): Say which place.",
        "guide ok tool_calls 7+5: search(query=Bath)",
        "  guide ok search(query=Bath): Bath is a town.",
        "guide ok stop 7+5: Sunny.",
        "guide ok tool_calls 7+5: book(city=Bath)",
        "  guide error book(city=Bath): PermissionError",
        "guide ok tool_calls 7+5: weather(city=Rome)",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok stop 7+5: One by one.",
    ]
    assert [(call["agent"], call["status"]) for call in result.calls_of_kind("agent")] == [
        ("guide", "ok"),
        ("guide", "error"),
        ("guide", "ok"),
    ]
    completeness.check("pydantic-ai-slim", "frameworks", result)


def test_an_agent_in_a_tool_and_an_output_type(run: Run) -> None:
    result = run("frameworks", "pydantic_ai_agent", "sub_agent")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "It is blue.\n", "")
    assert describe_calls(result) == [
        "guide ok tool_calls 7+5: forecast(city=Oslo)",
        "  guide ok forecast(city=Oslo): blue",
        "forecaster ok tool_calls 7+5: final_result(city=Oslo, sky=blue)",
        "guide ok stop 7+5: It is blue.",
    ]
    names = {call["call_id"]: f"{call['kind']} {call['agent']}" for call in result.calls.to_dicts()}
    assert [
        (names[call["call_id"]], names.get(call["parent_id"])) for call in result.calls.to_dicts()
    ] == [
        ("agent guide", None),
        ("llm guide", "agent guide"),
        ("tool guide", "agent guide"),
        ("agent forecaster", "tool guide"),
        ("llm forecaster", "agent forecaster"),
        ("llm guide", "agent guide"),
    ]
    assert result.states.select("t", "variable", "value").rows() == [
        (1, "input", '"Tomorrow? [[forecast(city=Oslo); It is blue.]]"'),
        (2, "tool.forecast.arguments", '{"city":"Oslo"}'),
        (5, "tool.final_result.arguments", '{"city":"Oslo","sky":"blue"}'),
        (5, "tool.forecast.result", '"blue"'),
        (6, "guide.output", '"It is blue."'),
        (6, "answer", '"It is blue."'),
    ]


def test_complete_exported_spans(run: Run) -> None:
    result = run("frameworks", "seeded", "pydantic_ai_agent", "sub_agent", LTRAIN_POLICY_URLS="")
    assert result.stderr == ""
    exported.check_exported_spans("pydantic_ai", result.otlp_requests, result.port)
