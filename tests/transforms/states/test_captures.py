"""Variables of real frameworks, from captures of them, through OTLP and chDB."""

from typing import Any

import polars as pl
import pytest
from tests.otlp import insert_otlp
from tests.transforms.test_fixtures import requests

from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.states import states


def read_states(store: Store, name: str) -> tuple[list[tuple[Any, ...]], pl.DataFrame]:
    """Return variable, value and the writer's kind of each row, and the observations."""
    for request in requests(f"{name}.otlp.json", stamped=True):
        insert_otlp(store, request)
    call_rows, _ = calls(read_spans(store, Source(), Selection())[0])
    written, observations, _ = states(call_rows)
    kinds = call_rows.select("call_id", "kind")
    by = written.join(kinds, left_on="written_by", right_on="call_id", how="left")
    rows = by.sort("t", maintain_order=True).select("variable", "value", "kind").rows()
    return rows, observations.join(kinds, "call_id")


def test_pydantic_ai(store: Store) -> None:
    rows, observations = read_states(store, "pydantic-ai__builtin-2.68.0")
    own = [row for row in rows if not row[0].startswith("weather_agent.input")]
    assert own[:4] == [
        ("input", '"weather please"', None),
        ("tool.get_weather.arguments", '{"city":"Paris"}', "llm"),
        ("tool.get_weather.result", '"sunny in Paris"', "tool"),
        ("weather_agent.output", '"The answer is: sunny in Paris"', "llm"),
    ]
    assert rows[-1] == ("answer", '"The answer is: sunny in Paris"', "llm")
    actions = observations.filter(pl.col("kind") == "llm")["action"].to_list()
    assert actions[:2] == ["tool_request", "answer"] and "context" not in actions


def test_langgraph(store: Store) -> None:
    rows, observations = read_states(store, "langgraph__openinference-0.1.80-genai")
    first = [(variable, kind) for variable, _, kind in rows][:8]
    assert first == [
        ("input", None),
        ("messages", None),
        ("retrieval.R.query", None),
        ("retrieval.R.documents", "retrieval"),
        ("docs", "node"),
        ("rag_agent.output", "llm"),
        ("plan", "node"),
        ("tool.get_weather.arguments", "llm"),
    ]
    assert "context" not in observations["action"].to_list()
    assert observations["state_digest"].null_count() == 0


def test_traceloops_langchain(store: Store) -> None:
    rows, observations = read_states(store, "langchain__traceloop-0.62.4")
    by = {variable: kind for variable, _, kind in rows if variable in ("messages", "answer")}
    assert by == {"messages": "node", "answer": "llm"}
    assert ("input", '"weather please"', None) in rows
    assert "context" not in observations["action"].to_list()


@pytest.mark.parametrize(
    "name",
    [
        "autogen__builtin-0.7.5",
        "langchain__DOUBLE-user-named-packages",
        "langchain__gateway-with-bridge",
        "langchain__otel-genai-langchain-1.3b0",
        "langgraph__otel-genai-langchain-1.3b0",
        "mcp__builtin-2.3.0",
        "openai-agents__openinference-2.6.0-genai",
        "openai-agents__otel-genai-1.3b0",
        "openai__openinference-0.1.66",
        "openai__otel-genai-openai-1.3b0",
        "openai__traceloop-0.62.4",
    ],
)
def test_no_capture_has_context_management(store: Store, name: str) -> None:
    rows, observations = read_states(store, name)
    assert "context" not in observations["action"].to_list()
    assert not [row for row in rows if row[0].split(".")[-1] in ("context", "summary")]
    assert observations.filter(
        pl.col("kind") == "llm", pl.col("state_digest").is_not_null()
    ).height == (observations.filter(pl.col("kind") == "llm").height)
