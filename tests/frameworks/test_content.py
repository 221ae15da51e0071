"""OpenTelemetry's switch turns content off for every instrumentor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.frameworks.conftest import CONTENT_OFF

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

WORDS = ("Say it", "Rome", "sunny", "One by one")


@pytest.mark.parametrize("agent", ["pydantic_ai_agent", "autogen_team", "smolagents_agents"])
def test_no_content(run: Run, agent: str) -> None:
    result = run("frameworks", agent, "streamed", **CONTENT_OFF)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "One by one.")
    assert result.stderr.startswith("ltrain: no token ids are recorded: they decode to the text")
    assert result.stderr.count("\n") == 1
    recorded_text = f"{result.spans.to_dicts()} {result.calls.to_dicts()}"
    assert [word for word in WORDS if word in recorded_text] == []
    assert len(result.calls_of_kind("llm")) == 2
    assert result.calls_of_kind("tool")[0]["name"] == "weather"
