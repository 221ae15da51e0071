"""The OpenAI client without a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness, exported
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

NO_TOOL_SPANS = "the client runs no tools: the agent's own functions have no spans"


def test_a_manual_tool_loop(run: Run) -> None:
    result = run("frameworks", "openai_chat")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Sunny.\nOne by one.\n", "")
    assert [model_requests.failed for model_requests in result.model_requests] == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert describe_calls(result) == [
        "None ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "None ok tool_calls 7+5: weather(city=Oz)",
        "None ok stop 7+5: Sunny.",
        "None ok stop 7+5: One by one.",
    ]
    results = result.states.filter(result.states["variable"] == "tool.weather.result")[
        "value"
    ].to_list()
    assert results == ['"It is sunny in Paris."', '"It is sunny in Rome."', '"Error: no such city"']
    reasons = {"C5": NO_TOOL_SPANS, "C6": NO_TOOL_SPANS, "agent": "the client has no agents"}
    completeness.check("openai", "frameworks", result, reasons)


def test_every_request_method_is_one_call(run: Run) -> None:
    result = run("frameworks", "openai_ways")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        *("1 whole", "2 streamed", "4 by events", "name='Rome'", "6 raw", "7 text"),
        *("8 response", "9 streamed", "10 by events", "name='Rome'"),
        *("12 async streamed", "14 async 15 async response", "response.completed"),
    ]
    calls = [line.removeprefix("None ok ") for line in describe_calls(result)]
    assert (len(result.model_requests), calls[:13], sorted(calls[13:])) == (
        16,
        [
            "stop 7+5: 1 whole",
            "stop 7+5: 2 streamed",
            "stop 7+5: 3 streamed and left",
            "stop 7+5: 4 by events",
            'stop 7+5: {"name": "Rome"}',
            "stop 7+5: 6 raw",
            "stop 7+5: 7 text",
            "stop 7+5: 8 response",
            "stop 7+5: 9 streamed",
            "stop 7+5: 10 by events",
            'stop 7+5: {"name": "Rome"}',
            "stop 7+5: 12 async streamed",
            "stop 7+5: 13 async and left",
        ],
        ["stop 7+5: 14 async", "stop 7+5: 15 async response", "stop 7+5: 16 async streamed"],
    )
    assert result.executions["complete"].to_list() == [True]


def test_complete_exported_spans(run: Run) -> None:
    result = run("frameworks", "seeded", "openai_chat", LTRAIN_POLICY_URLS="")
    assert result.stderr == ""
    exported.check_exported_spans("openai", result.otlp_requests, result.port)
