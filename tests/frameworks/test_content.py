"""OpenTelemetry's switch turns content off for every instrumentor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

OFF = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}
WORDS = ("Say it", "Rome", "sunny", "One by one")


@pytest.mark.parametrize("agent", ["pydantic_ai_agent", "autogen_team", "smolagents_agents"])
def test_no_content(run: Run, agent: str) -> None:
    result = run("frameworks", agent, "streamed", **OFF)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "One by one.")
    assert result.stderr.startswith("ltrain: no token ids are recorded: they decode to the text")
    assert result.stderr.count("\n") == 1
    recorded_text = f"{result.spans.to_dicts()} {result.calls.to_dicts()}"
    assert [word for word in WORDS if word in recorded_text] == []
    assert len(result.calls_of_kind("llm")) == 2
    assert result.calls_of_kind("tool")[0]["name"] == "weather"


@pytest.mark.parametrize(
    ("agent", "variables"),
    [
        ("agno_agents", {}),
        ("dspy_agents", {}),
        ("google_adk_agents", {}),
        ("google_adk_agents", {"LTRAIN_INSTRUMENTORS": "google-adk=built-in"}),
        ("haystack_agents", {"HAYSTACK_TELEMETRY_ENABLED": "False"}),
        ("semantic_kernel_agents", {}),
        ("strands_agents", {}),
    ],
)
def test_no_content_of_newer_frameworks(
    run: Run, tmp_path: Path, agent: str, variables: dict[str, str]
) -> None:
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DSPY_CACHEDIR": str(tmp_path / "cache")}
    result = run("otel144", agent, "tools", **local, **variables, **OFF)
    assert (result.exit_code, "Sunny." in result.stdout) == (0, True)
    recorded_text = f"{result.spans.to_dicts()} {result.calls.to_dicts()}"
    words = ("Two cities", "Paris", "Rome", "sunny")
    assert [word for word in words if word in recorded_text] == []
    assert result.calls_of_kind("llm")
