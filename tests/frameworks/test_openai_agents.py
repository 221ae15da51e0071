"""The OpenAI Agents SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls
from tests.train.gateway.conftest import write_model
from tests.train.gateway.stage import IDENTITY, Stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.frameworks.conftest import Run
    from tests.frameworks.model import Model


CALLS = [
    "traveller ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
    "  traveller ok weather(city=Paris): It is sunny in Paris.",
    "  traveller ok weather(city=Rome): It is sunny in Rome.",
    "traveller ok tool_calls 7+5: search(query=hail)",
    "  traveller error search(query=hail): "
    "An error occurred while running the tool. Please try again.",
    "traveller ok stop 7+5: Sunny.",
    "traveller ok tool_calls 7+5: weather(city=Oslo)",
    "  traveller ok weather(city=Oslo): It is sunny in Oslo.",
    "traveller ok stop 7+5: Snow.",
    "traveller ok tool_calls 7+5: transfer_to_clerk()",
    "  traveller ok transfer_to_clerk(): clerk",
    "clerk ok stop 7+5: I can.",
    "clerk ok tool_calls 7+5: book(city=Rome)",
    "  clerk error book(city=Rome): None",
]


def test_agents(run: Run) -> None:
    result = run("frameworks", "openai_agents")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        *("Sunny.", "Snow. True", "I can. clerk"),
        *("Error running tool book: no trips to Rome", "not so loud"),
    ]
    assert [model_requests.failed for model_requests in result.model_requests] == [
        False,
        True,
        *[False] * 7,
    ]
    assert describe_calls(result) == CALLS
    reasons = {"ids": "the SDK uses /responses, where no server returns token ids"}
    completeness.check("openai-agents", "frameworks", result, reasons)


def test_agents_through_the_gateway(run: Run, model: Model, tmp_path: Path) -> None:
    stage = Stage(model.url.removesuffix("/v1"), tmp_path / "gateway")
    stage.policies.register("policy", write_model(tmp_path / "model"))
    with stage.running():
        base = f"{stage.url}/rollout/{IDENTITY.rollout}/attempt/{IDENTITY.attempt}/v1"
        result = run(
            "frameworks", "openai_agents", OPENAI_BASE_URL=base, OPENAI_API_KEY=stage.key()
        )
        spans = [span["attributes"] for span in stage.spans() if span["name"] == "chat fake"]
    assert (result.exit_code, result.stderr) == (0, "")
    # the SDK's instrumentation records summaries of reasoning, and vLLM's reasoning has none
    assert describe_calls(result) == [call.replace("<Two cities.> + ", "") for call in CALLS]
    assert len(spans) == sum(not call.startswith(" ") for call in CALLS)
    assert all("ltrain.response_token_ids" in attributes for attributes in spans)
    # the SDK makes tools strict, and vLLM constrains calls with such tools
    assert any("ltrain.constraint" in attributes for attributes in spans)
