"""LangChain: its agent, and a model without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.told import told

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_agent(run: Run) -> None:
    ran = run("frameworks", "langchain_agent")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "Sunny.\nIt is sunny in Oslo.Snow.\nno trips to Rome\n"
    assert [asked.failed for asked in ran.asked] == [False, True, *[False] * 5]
    assert told(ran) == [
        "traveller ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  traveller ok weather(city=Paris): It is sunny in Paris.",
        "  traveller ok weather(city=Rome): It is sunny in Rome.",
        "traveller ok tool_calls 7+5: search(query=hail)",
        "  traveller error search(query=hail): nothing found for hail",
        "traveller ok stop 7+5: Sunny.",
        "traveller ok tool_calls 7+5: <There.> + weather(city=Oslo)",
        "  traveller ok weather(city=Oslo): It is sunny in Oslo.",
        "traveller ok stop 7+5: Snow.",
        "traveller ok tool_calls 7+5: book(city=Rome)",
        "  traveller error book(city=Rome): RuntimeError",
    ]
    completeness.check("langchain", "frameworks", ran)


def test_a_model_without_an_agent(run: Run) -> None:
    ran = run("frameworks", "langchain_model")
    assert (ran.code, ran.err) == (0, "")
    calls = sorted(told(ran))
    assert (len(ran.asked), calls) == (
        12,
        [
            "None ok stop 7+5: Eight it is.",
            "None ok stop 7+5: Eleven it is.",
            "None ok stop 7+5: Five it is.",
            "None ok stop 7+5: Four it is.",
            "None ok stop 7+5: Nine it is.",
            "None ok stop 7+5: One it is.",
            "None ok stop 7+5: Seven it is.",
            "None ok stop 7+5: Six it is.",
            "None ok stop 7+5: Ten it is.",
            "None ok stop 7+5: Three it is.",
            "None ok stop 7+5: Twelve it is.",
            "None ok stop 7+5: Two it is.",
        ],
    )
    sent = {asked.headers["traceparent"].split("-")[2] for asked in ran.asked}
    assert len(sent) == 12
    assert sent <= set(ran.spans["span_id"])
    assert ran.executions["traces"].to_list() == [12]
