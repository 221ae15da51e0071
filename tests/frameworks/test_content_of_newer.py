"""OpenTelemetry's switch turns content off for the instrumentors of newer frameworks, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.frameworks.conftest import CONTENT_OFF

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


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
    result = run("otel144", agent, "tools", **local, **variables, **CONTENT_OFF)
    assert (result.exit_code, "Sunny." in result.stdout) == (0, True)
    recorded_text = f"{result.spans.to_dicts()} {result.calls.to_dicts()}"
    words = ("Two cities", "Paris", "Rome", "sunny")
    assert [word for word in words if word in recorded_text] == []
    assert result.calls_of_kind("llm")
