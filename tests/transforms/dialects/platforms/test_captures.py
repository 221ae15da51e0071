"""Captures of platforms' SDKs: an agent asks a model, calls a tool that fails once, asks again."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import emptied, open_empty_store
from tests.transforms.made import texts

from ltrain_collector.store import Store
from ltrain_collector.transfer.importing import import_files
from ltrain_transforms.calls import calls, unknown_attributes
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.traces import iter_spans

CAPTURES = Path(__file__).parents[3] / "fixtures" / "platforms"
"""Of lmnr, mlflow-tracing, … by their versions, with openai 3.57 (OpenLIT: 2.54)."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_empty_store(tmp_path_factory.mktemp("store") / "store") as opened:
        yield opened


@dataclass(frozen=True)
class Read:
    """A capture as calls, in order of time, and its other spans."""

    calls: pl.DataFrame
    others: list[str]
    """The names of the spans that describe no call."""
    unknown: list[str]
    """The attributes by which these look like calls."""


def read(opened: Store, name: str) -> Read:
    store = emptied(opened)
    import_files(store, [CAPTURES / f"{name}.otlp.json"], lambda progress: None)
    source = Source.model_validate({"execution": "trace"})
    spans, drops = read_spans(store, source, Selection())
    rows, call_drops = calls(spans)
    assert drops.is_empty() and call_drops.is_empty()
    used = set(rows["source_spans"].explode(empty_as_null=True))
    others = [one for one in iter_spans(spans) if one.span_id not in used]
    return Read(
        rows.sort("start"),
        sorted(one.name for one in others),
        [name for one in others for name in unknown_attributes(one)],
    )


Row = tuple[str, str | None, str | None]
"""Kind, name and agent of a call."""


def calls_of(agent: Row, tool: Row | None, model: str = "policy-2026") -> list[Row]:
    """Return the calls of one question."""
    llm: Row = ("llm", model, agent[1])
    return [agent, llm, *([tool] if tool else []), llm]


AGENT: Row = ("agent", "weather_agent", "weather_agent")
NODE: Row = ("node", "weather_agent", None)
TOOL: Row = ("tool", "get_weather", "weather_agent")
TURN: Row = ("node", "invoke_agent", "weather_agent")
"""A turn of the Agents SDK, by OpenLIT."""
LLM: Row = ("llm", "policy-2026", "weather_agent")
POST = ["POST"] * 4
WORKFLOW = [
    *(("agent", "invoke_workflow Agent workflow", None), ("node", "invoke_agent", None), AGENT),
    *(TURN, LLM, TOOL, TURN, LLM),
]
AGENTS_SDK = [
    *["OpenAI Agents trace: {name}"] * 2,
    *["Task: Agent workflow"] * 2,
    *["Turn {turn} for agent weather_agent"] * 4,
]

ROWS: dict[str, list[Row]] = {
    "openai__mlflow-3.17.2": calls_of(AGENT, TOOL) * 2,
    "openai__laminar-0.8.2": calls_of(NODE, TOOL) * 2,
    "openai__logfire-5.4.0-version-1": [("llm", "policy-2026", None)] * 4,
    "openai-agents__logfire-5.4.0": calls_of(AGENT, TOOL, "policy") * 2,
    "openai__openlit-1.45.0": [
        *calls_of(NODE, ("node", "get_weather", "weather_agent")),
        *calls_of(NODE, None),
    ],
    "openai-agents__openlit-1.45.0": WORKFLOW * 2,
    "openai__langfuse-5.0.4": calls_of(AGENT, TOOL) * 2,
    "openai__langsmith-0.15.1": calls_of(NODE, TOOL) * 2,
    "openai__weave-0.54.0": calls_of(AGENT, TOOL) * 2,
    "openai__opik-2.2.122": calls_of(NODE, TOOL) * 2,
}
"""By capture: its calls."""
OTHERS = {
    "openai__logfire-5.4.0-version-1": ["get_weather"] * 2 + ["weather_agent"] * 2,
    "openai-agents__logfire-5.4.0": AGENTS_SDK,
    "openai__openlit-1.45.0": [*POST, "get_weather"],  # a function that raised has no attributes
    "openai-agents__openlit-1.45.0": ["create_agent weather_agent"],
}
"""By capture: the spans that describe no call."""
NO_FINISH = ("openai-agents__logfire-5.4.0", "openai__langfuse-5.0.4")
OPENLIT = ("openai__openlit-1.45.0", "openai-agents__openlit-1.45.0")
"""They lack reasoning tokens, and messages of the assistant in requests if these have no text."""
NO_TOOLS = ("openai__logfire-5.4.0-version-1", "openai__openlit-1.45.0")
RESULTS = ("openai-agents__logfire-5.4.0", "openai-agents__openlit-1.45.0")
"""The Agents SDK returns the failure of a tool as its result."""
ERRORS = {
    "openai__langfuse-5.0.4": None,
    "openai-agents__openlit-1.45.0": "Error running tool (non-fatal)",
}
"""By capture: the class of the tool's error, where it is not `LookupError`."""


def test_every_capture_is_expected() -> None:
    assert {path.name.removesuffix(".otlp.json") for path in CAPTURES.iterdir()} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_calls_tokens_messages_and_requesters_are_exact(opened: Store, name: str) -> None:
    found = read(opened, name)
    assert found.calls.select("kind", "name", "agent").rows() == ROWS[name]
    assert (found.others, found.unknown) == (OTHERS.get(name, []), [])
    llm = found.calls.filter(kind="llm")
    thought = None if name in OPENLIT else 2
    reasons = (None, None) if name in NO_FINISH else ("tool_calls", "stop")
    columns = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")
    assert (
        llm.select(*columns, "finish_reason", "temperature", "status").rows()
        == [
            (20, 9, thought, 4, reasons[0], 0.5, "ok"),
            (30, 6, thought, 4, reasons[1], 0.5, "ok"),
        ]
        * 2
    )
    assert list(zip(map(texts, llm["input"]), map(texts, llm["output"]), strict=True)) == [
        *conversation("Paris", "sunny in Paris", "It is sunny in Paris.", name),
        *conversation("Atlantis", "Error: no weather of Atlantis", "I do not know.", name),
    ]
    check_tools(found.calls, name)


def conversation(city: str, result: str, answer: str, name: str) -> list[Any]:
    """Return the messages in and out of the two LLM calls about a city."""
    question = [("system", "Be terse."), ("user", f"weather in {city}?")]
    request = [("assistant", "get_weather")]
    kept = [] if name in OPENLIT else request
    return [
        (question, request),
        ([*question, *kept, ("tool", result)], [("assistant", answer)]),
    ]


def check_tools(rows: pl.DataFrame, name: str) -> None:
    tools = rows.filter(kind="tool")
    assert tools.height == (0 if name in NO_TOOLS else 2)
    if tools.is_empty():
        return
    assert [json.loads(text)["city"] for text in tools["arguments"]] == ["Paris", "Atlantis"]
    failure = "Error: no weather of Atlantis" if name in RESULTS else None
    assert tools.select("result", "status", "error_type", "tool_call_id").rows() == [
        ("sunny in Paris", "ok", None, "call_paris"),
        (failure, "error", ERRORS.get(name, "LookupError"), "call_atlantis"),
    ]
    llm = rows.filter(kind="llm")["call_id"].to_list()
    assert tools["requested_by"].to_list() == [llm[0], llm[2]]


WITH_DEFINITIONS = [
    *("openai__mlflow-3.17.2", "openai__laminar-0.8.2", "openai__logfire-5.4.0-version-1"),
    *("openai__langfuse-5.0.4", "openai__langsmith-0.15.1", "openai__opik-2.2.122"),
]


@pytest.mark.parametrize("name", WITH_DEFINITIONS)
def test_tool_definitions_are_those_of_the_request(opened: Store, name: str) -> None:
    llm = read(opened, name).calls.filter(kind="llm")
    definitions = [one for text in llm["tools"] for one in json.loads(text)]
    names = [(one.get("function") or one)["name"] for one in definitions]
    assert names == ["get_weather"] * 4
