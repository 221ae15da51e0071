"""google-adk: OpenInference's instrumentor, and the telemetry that is built in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

LOCAL = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""litellm, which calls the model, otherwise requests a list of prices."""
TOOLS = [
    "guide ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
    '  guide ok weather(city=Paris): {"result": "It is sunny in Paris."}',
    '  guide ok weather(city=Rome): {"result": "It is sunny in Rome."}',
    "guide ok tool_calls 7+5: search(query=hail)",
    '  guide error search(query=hail): {"status": "error", "error_message": '
    '"nothing found for hail"}',
    "guide ok stop 7+5: Sunny.",
    "guide ok tool_calls 7+5: weather(city=Bath)",
    '  guide ok weather(city=Bath): {"result": "It is sunny in Bath."}',
    "guide ok stop 7+5: Fine.",
]
OTHERS = [
    "guide ok tool_calls 7+5: book(city=Bath)",
    "  guide error book(city=Bath): PermissionError",
    "streaming_guide ok tool_calls 7+5: weather(city=Rome)",
    '  streaming_guide ok weather(city=Rome): {"result": "It is sunny in Rome."}',
    "streaming_guide ok stop 7+5: One by one.",
    "desk ok tool_calls 7+5: transfer_to_agent(agent_name=forecaster)",
    '  desk ok transfer_to_agent(agent_name=forecaster): {"result": null}',
    "forecaster ok tool_calls 7+5: weather(city=Oslo)",
    '  forecaster ok weather(city=Oslo): {"result": "It is sunny in Oslo."}',
    "forecaster ok stop 7+5: Sunny it is.",
]


def test_agent(run: Run) -> None:
    result = run("otel144", "google_adk_agents", "tools", **LOCAL)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Sunny.\nFine.\n", "")
    assert describe_calls(result) == TOOLS
    answers = result.states.filter(result.states["variable"] == "guide.output")["value"]
    assert answers.to_list() == ['"Sunny."', '"Fine."']
    completeness.check("google-adk", "otel144", result)


@pytest.mark.parametrize("provider", ["openinference", "built-in"])
def test_a_raising_tool_a_stream_and_a_transfer(run: Run, provider: str) -> None:
    chosen = {**LOCAL, "LTRAIN_INSTRUMENTORS": f"google-adk={provider}"}
    # of what this agent does, only the first case differs between the two instrumentors
    modes = ("tools",) if provider == "built-in" else ()
    result = run("otel144", "google_adk_agents", *modes, "raising", "streamed", "team", **chosen)
    assert result.exit_code == 0
    assert result.stdout.endswith("no room in Bath\nOne by one.\nSunny it is.\n")
    assert describe_calls(result) == [*(TOOLS if modes else []), *OTHERS]
    names = {call["call_id"]: call["name"] for call in result.calls_of_kind("agent")}
    assert {names.get(call["parent_id"]) for call in result.calls_of_kind("tool")} == {
        "guide",
        "streaming_guide",
        "desk",
        "forecaster",
    }
    answers = result.states.filter(result.states["variable"] == "answer")["value"].to_list()
    assert answers == ['"Sunny it is."']
    assert "One by one.One by one." not in "".join(result.states["value"])
    assert result.executions["complete"].to_list() == [True]
