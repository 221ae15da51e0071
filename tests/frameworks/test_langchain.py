"""LangChain: its agent, and a model without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_agent(run: Run) -> None:
    result = run("frameworks", "langchain_agent")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Sunny.\nIt is sunny in Oslo.Snow.\nno trips to Rome\n"
    assert [model_requests.failed for model_requests in result.model_requests] == [
        False,
        True,
        *[False] * 5,
    ]
    assert describe_calls(result) == [
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
    completeness.check("langchain", "frameworks", result)


def test_a_model_without_an_agent(run: Run) -> None:
    result = run("frameworks", "langchain_model")
    assert (result.exit_code, result.stderr) == (0, "")
    calls = sorted(describe_calls(result))
    assert (len(result.model_requests), calls) == (
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
    span_ids = {
        model_requests.headers["traceparent"].split("-")[2]
        for model_requests in result.model_requests
    }
    assert len(span_ids) == 12
    assert span_ids <= set(result.spans["span_id"])
    assert result.executions["traces"].to_list() == [12]
