"""OpenTelemetry's switch turns content off, whoever instruments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

WORDS = ("Say it", "Rome", "sunny", "One by one")


@pytest.mark.parametrize("agent", ["pydantic_ai_agent", "autogen_team", "smolagents_agents"])
def test_no_content(run: Run, agent: str) -> None:
    off = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}
    ran = run("frameworks", agent, "streamed", **off)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "One by one.")
    assert ran.err.startswith("ltrain: no token ids are recorded: they decode to the text")
    assert ran.err.count("\n") == 1
    told = f"{ran.spans.to_dicts()} {ran.calls.to_dicts()}"
    assert [word for word in WORDS if word in told] == []
    assert len(ran.of("llm")) == 2
    assert ran.of("tool")[0]["name"] == "weather"
