"""LlamaIndex: agents with tools and a retriever, a stream, a hand-off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.told import told

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

FOUND = ("name", "input", "output", "parent_id")
FORWARDED = (
    "Agent forecaster is now handling the request due to the following reason: sky.\n"
    "Please continue with the current request."
)


def test_agents_and_a_team(run: Run) -> None:
    ran = run("openai2", "llama_index_agents", "tools", "streamed", "team")
    assert (ran.code, ran.out, ran.err) == (0, "Sunny.\nOne by one.\nSnow.\n", "")
    assert told(ran) == [
        "guide ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  guide ok weather(city=Paris): It is sunny in Paris.",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok tool_calls 7+5: book(city=Bath)",
        "  guide error book(city=Bath): PermissionError",
        "guide ok tool_calls 7+5: search(query=hail)",
        "  guide error search(query=hail): Nothing found.",
        "guide ok tool_calls 7+5: search(query=Bath)",
        "  guide ok search(query=Bath): Bath is a town.",
        "guide ok stop 7+5: Sunny.",
        "streaming_guide ok tool_calls 7+5: weather(city=Rome)",
        "  streaming_guide ok weather(city=Rome): It is sunny in Rome.",
        "streaming_guide ok stop 7+5: One by one.",
        "desk ok tool_calls 7+5: handoff(to_agent=forecaster, reason=sky)",
        f"  desk ok handoff(to_agent=forecaster, reason=sky): {FORWARDED}",
        "forecaster ok tool_calls 7+5: weather(city=Oslo)",
        "  forecaster ok weather(city=Oslo): It is sunny in Oslo.",
        "forecaster ok stop 7+5: Snow.",
    ]
    searches = [tool["call_id"] for tool in ran.of("tool") if tool["name"] == "search"]
    found = [tuple(call[name] for name in FOUND) for call in ran.of("retrieval")]
    assert found == [
        ("VectorIndexRetriever", "hail", '["Bath is a town."]', searches[0]),
        ("VectorIndexRetriever", "Bath", '["Bath is a town."]', searches[1]),
    ]
    written = ran.states.select("variable", "value").rows()
    assert [(name, value) for name, value in written if name.endswith((".output", "answer"))] == [
        ("guide.output", '"Sunny."'),
        ("streaming_guide.output", '"One by one."'),
        ("forecaster.output", '"Snow."'),
        ("answer", '"Snow."'),
    ]
    assert ran.executions["complete"].to_list() == [True]
    completeness.check("llama-index-core", "openai2", ran)


def test_models_and_a_query_engine_without_agents(run: Run) -> None:
    ran = run("openai2", "llama_index_agents", "alone")
    assert (ran.code, ran.out, ran.err) == (0, "Left.\nLeft.\nRight.\nUp.\nAll well.\n", "")
    assert told(ran) == [
        "None ok stop 7+5: Left.",
        "None ok stop 7+5: Left.",
        "None ok stop 7+5: Right.",
        "None ok stop 7+5: Up.",
        "CompactAndRefine.get_response ok stop 7+5: All well.",
    ]
    (found,) = ran.of("retrieval")
    assert (found["input"], found["output"]) == ("Well? [[All well.]]", '["Bath is a town."]')
