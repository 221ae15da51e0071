"""haystack: agents alone and in a pipeline, whose tools ltrain records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls, failed_texts

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

NO_TELEMETRY = {"HAYSTACK_TELEMETRY_ENABLED": "False"}
"""Switches off haystack's own telemetry to its vendor."""
FAILED = "Failed to invoke Tool `book` with parameters {'city': 'Bath'}. Error: no room in Bath"


def test_agents_and_a_pipeline(run: Run) -> None:
    modes = ("tools", "streamed", "awaited", "pipeline")
    result = run("otel144", "haystack_agents", *modes, **NO_TELEMETRY)
    assert (result.exit_code, result.stderr) == (0, f"{FAILED}\n")
    assert result.stdout == "Sunny.\nOne by one.\nSnow.\nFine.\n"
    assert describe_calls(result) == [
        "Agent ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  Agent ok weather(city=Paris): It is sunny in Paris.",
        "  Agent ok weather(city=Rome): It is sunny in Rome.",
        "Agent ok tool_calls 7+5: book(city=Bath)",
        f'  Agent error book(city=Bath): {{"error": "{FAILED}"}}',
        "Agent ok stop 7+5: Sunny.",
        "Agent ok tool_calls 7+5: weather(city=Rome)",
        "  Agent ok weather(city=Rome): It is sunny in Rome.",
        "Agent ok stop 7+5: One by one.",
        "Agent ok tool_calls 7+5: weather(city=Oslo)",
        "  Agent ok weather(city=Oslo): It is sunny in Oslo.",
        "Agent ok stop 7+5: Snow.",
        "guide ok tool_calls 7+5: weather(city=Oslo)",
        "  guide ok weather(city=Oslo): It is sunny in Oslo.",
        "guide ok stop 7+5: Fine.",
    ]
    assert result.executions["traces"].to_list() == [4]
    assert failed_texts(result, "haystack") == {FAILED}
    completeness.check("haystack-ai", "otel144", result)
