"""LlamaIndex: agents with tools and a retriever, a stream, a handoff."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

RETRIEVAL_COLUMNS = ("name", "input", "output", "parent_id")
FORWARDED = (
    "Agent forecaster is now handling the request due to the following reason: sky.\n"
    "Please continue with the current request."
)


def test_agents_and_a_team(run: Run) -> None:
    result = run("openai2", "llama_index_agents", "tools", "streamed", "team")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "Sunny.\nOne by one.\nSnow.\n",
        "",
    )
    assert describe_calls(result) == [
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
    searches = [
        tool["call_id"] for tool in result.calls_of_kind("tool") if tool["name"] == "search"
    ]
    retrievals = [
        tuple(call[name] for name in RETRIEVAL_COLUMNS)
        for call in result.calls_of_kind("retrieval")
    ]
    assert retrievals == [
        ("VectorIndexRetriever", "hail", '["Bath is a town."]', searches[0]),
        ("VectorIndexRetriever", "Bath", '["Bath is a town."]', searches[1]),
    ]
    states = result.states.select("variable", "value").rows()
    assert [(name, value) for name, value in states if name.endswith((".output", "answer"))] == [
        ("guide.output", '"Sunny."'),
        ("streaming_guide.output", '"One by one."'),
        ("forecaster.output", '"Snow."'),
        ("answer", '"Snow."'),
    ]
    assert result.executions["complete"].to_list() == [True]
    completeness.check("llama-index-core", "openai2", result)


def test_models_and_a_query_engine_without_agents(run: Run) -> None:
    result = run("openai2", "llama_index_agents", "alone")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "Left.\nLeft.\nRight.\nUp.\nAll well.\n",
        "",
    )
    assert describe_calls(result) == [
        "None ok stop 7+5: Left.",
        "None ok stop 7+5: Left.",
        "None ok stop 7+5: Right.",
        "None ok stop 7+5: Up.",
        "CompactAndRefine.get_response ok stop 7+5: All well.",
    ]
    (retrievals,) = result.calls_of_kind("retrieval")
    assert (retrievals["input"], retrievals["output"]) == (
        "Well? [[All well.]]",
        '["Bath is a town."]',
    )
