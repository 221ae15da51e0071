"""litellm: complete, streamed, concurrent, routed and failing requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

NO_TOOL_SPANS = "litellm runs no tools: the agent's own functions have no spans"


def test_every_request_method_is_one_call(run: Run) -> None:
    modes = ("loop", "streamed", "several", "routed", "failing")
    result = run("openai2", "litellm_loop", *modes, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[:6] == [
        *("Sunny.", "One by one.", "Left. Right.", "Word by word.", "2", "All well."),
    ]
    calls = describe_calls(result)
    assert sorted(calls[4:6]) == ["None ok stop 7+5: Left.", "None ok stop 7+5: Right."]
    assert calls[:4] + calls[6:] == [
        "None ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "None ok tool_calls 7+5: search(query=hail)",
        "None ok stop 7+5: Sunny.",
        "None ok stop 7+5: One by one.",
        "None ok stop 7+5: Word by word.",
        "None error None None+None left: ",  # the router retried
        "None ok stop 7+5: All well.",
        "None error None None+None: ",  # no server listens there
    ]
    assert {call["capture_mismatch"] for call in result.calls_of_kind("llm")} == {None}
    assert [call["params"] for call in result.calls_of_kind("llm")][-2:] == [None, None]
    results = result.states.filter(result.states["variable"].str.ends_with(".result"))[
        "value"
    ].to_list()
    assert results == [
        '"It is sunny in Paris."',
        '"It is sunny in Rome."',
        '"Error: nothing found for hail"',
    ]
    assert len(result.calls_of_kind("embedding")) == 1
    reasons = {"C5": NO_TOOL_SPANS, "C6": NO_TOOL_SPANS, "agent": "litellm has no agents"}
    completeness.check("litellm", "openai2", result, reasons)
