"""The OpenAI client alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness, exported
from tests.frameworks.told import told

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

BY_HAND = "the client runs no tools: the agent's own functions leave no spans"


def test_a_tool_loop_by_hand(run: Run) -> None:
    ran = run("frameworks", "openai_chat")
    assert (ran.code, ran.out, ran.err) == (0, "Sunny.\nOne by one.\n", "")
    assert [asked.failed for asked in ran.asked] == [True, False, False, False, False]
    assert told(ran) == [
        "None ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "None ok tool_calls 7+5: weather(city=Oz)",
        "None ok stop 7+5: Sunny.",
        "None ok stop 7+5: One by one.",
    ]
    results = ran.states.filter(ran.states["variable"] == "tool.weather.result")["value"].to_list()
    assert results == ['"It is sunny in Paris."', '"It is sunny in Rome."', '"Error: no such city"']
    why = {"C5": BY_HAND, "C6": BY_HAND, "agent": "the client knows no agents"}
    completeness.check("openai", "frameworks", ran, why)


def test_every_way_to_ask_is_one_call(run: Run) -> None:
    ran = run("frameworks", "openai_ways")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        *("1 whole", "2 streamed", "4 by events", "name='Rome'", "6 raw", "7 text"),
        *("8 response", "9 streamed", "10 by events", "name='Rome'"),
        *("12 async streamed", "14 async 15 async response", "response.completed"),
    ]
    calls = [line.removeprefix("None ok ") for line in told(ran)]
    assert (len(ran.asked), calls[:13], sorted(calls[13:])) == (
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
    assert ran.executions["complete"].to_list() == [True]


def test_whole_exported_spans(run: Run) -> None:
    ran = run("frameworks", "seeded", "openai_chat", LTRAIN_POLICY_URLS="")
    assert ran.err == ""
    exported.check("openai", ran.requests, ran.port)
