"""litellm: whole, streamed, many at once, by a router, and in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.told import told

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

BY_HAND = "litellm runs no tools: the agent's own functions leave no spans"


def test_each_way_to_ask_is_one_call(run: Run) -> None:
    modes = ("loop", "streamed", "several", "routed", "failing")
    ran = run("openai2", "litellm_loop", *modes, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[:6] == [
        *("Sunny.", "One by one.", "Left. Right.", "Word by word.", "2", "All well."),
    ]
    calls = told(ran)
    assert sorted(calls[4:6]) == ["None ok stop 7+5: Left.", "None ok stop 7+5: Right."]
    assert calls[:4] + calls[6:] == [
        "None ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "None ok tool_calls 7+5: search(query=hail)",
        "None ok stop 7+5: Sunny.",
        "None ok stop 7+5: One by one.",
        "None ok stop 7+5: Word by word.",
        "None error None None+None left: ",  # the router asked again
        "None ok stop 7+5: All well.",
        "None error None None+None: ",  # nobody listens there
    ]
    assert {call["capture_mismatch"] for call in ran.of("llm")} == {None}
    assert [call["params"] for call in ran.of("llm")][-2:] == [None, None]
    results = ran.states.filter(ran.states["variable"].str.ends_with(".result"))["value"].to_list()
    assert results == [
        '"It is sunny in Paris."',
        '"It is sunny in Rome."',
        '"Error: nothing found for hail"',
    ]
    assert len(ran.of("embedding")) == 1
    why = {"C5": BY_HAND, "C6": BY_HAND, "agent": "litellm knows no agents"}
    completeness.check("litellm", "openai2", ran, why)
