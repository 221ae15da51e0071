"""agno: agents that run at once or awaited, a stream, and a team."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

LOCAL = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""The instrumentor imports litellm, which otherwise requests a list of prices."""


def test_agents_and_a_team(run: Run) -> None:
    result = run("otel144", "agno_agents", "tools", "streamed", "at_once", "team", **LOCAL)
    assert (result.exit_code, result.stderr) == (0, "")
    answers = [line for line in result.stdout.splitlines() if line.endswith(".")]
    assert answers == ["Sunny.", "One by one.", "No.", "Sunny it is."]
    assert describe_calls(result) == [
        "guide ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  guide ok weather(city=Paris): It is sunny in Paris.",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok tool_calls 7+5: book(city=Bath)",
        "  guide error book(city=Bath): no room in Bath",
        "guide ok stop 7+5: Sunny.",
        "streaming_guide ok tool_calls 7+5: weather(city=Rome)",
        "  streaming_guide ok weather(city=Rome): It is sunny in Rome.",
        "streaming_guide ok stop 7+5: One by one.",
        "direct_guide ok tool_calls 7+5: book(city=Bath)",
        "  direct_guide error book(city=Bath): no room in Bath",
        "direct_guide ok stop 7+5: No.",
        "desk ok tool_calls 7+5: delegate_task_to_member(member_id=forecaster, task=Oslo)",
        "  desk ok delegate_task_to_member(member_id=forecaster, task=Oslo): Sunny.",
        "forecaster ok tool_calls 7+5: weather(city=Oslo)",
        "  forecaster ok weather(city=Oslo): It is sunny in Oslo.",
        "forecaster ok stop 7+5: Sunny.",
        "desk ok stop 7+5: Sunny it is.",
    ]
    names = {call["call_id"]: call["name"] for call in result.calls_of_kind("agent")}
    assert [
        (call["name"], call["node"], names.get(call["parent_id"]))
        for call in result.calls_of_kind("agent")
    ] == [
        ("guide", None, None),
        ("streaming_guide", None, None),
        ("direct_guide", None, None),
        ("desk", None, None),
        ("forecaster", None, "desk"),
    ]
    completeness.check("agno", "otel144", result)
