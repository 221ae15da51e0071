"""Captures of real frameworks and SDKs, through OTLP and chDB, read exactly."""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import emptied, insert_otlp, open_empty_store
from tests.transforms.made import texts

from ltrain_collector.signals import LOGS, otlp_json
from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.traces import iter_spans

FIXTURES = Path(__file__).parent.parent / "fixtures"


ROLLOUT = "ro-9"
"""What the captured gateway wrote on its own spans."""


def documents(name: str) -> Iterator[dict[str, Any]]:
    """Read a capture: one or more OTLP-JSON documents."""
    text, position = (FIXTURES / name).read_text().strip(), 0
    while position < len(text):
        document, position = json.JSONDecoder().raw_decode(text, position)
        position += len(text[position:]) - len(text[position:].lstrip())
        yield document


def requests(name: str, stamped: bool) -> Iterator[bytes]:
    """Return a capture as OTLP requests, `stamped` by the environment of each process."""
    for document in documents(name):
        for resource in document["resourceSpans"] if stamped else ():
            stamp = {"key": "ltrain.rollout.id", "value": {"stringValue": ROLLOUT}}
            resource["resource"].setdefault("attributes", []).append(stamp)
        request = ParseDict(_with_base64_ids(document), ExportTraceServiceRequest())
        yield bytes(request.SerializeToString())


def _with_base64_ids(node: Any) -> Any:
    """OTLP's JSON writes ids in hexadecimal, protobuf's own JSON in base64."""
    if isinstance(node, list):
        return [_with_base64_ids(one) for one in node]
    if not isinstance(node, dict):
        return node
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        key: b64encode(bytes.fromhex(value)).decode() if key in ids else _with_base64_ids(value)
        for key, value in node.items()
    }


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_empty_store(tmp_path_factory.mktemp("store") / "store") as opened:
        yield opened


@pytest.fixture
def store(opened: Store) -> Store:
    return emptied(opened)


def insert_and_read(store: Store, name: str, stamped: bool = True) -> pl.DataFrame:
    for request in requests(name, stamped):
        insert_otlp(store, request)
    spans, drops = read_spans(store, Source(), Selection())
    assert drops.is_empty()
    return spans


def read_calls(store: Store, name: str, stamped: bool = True) -> pl.DataFrame:
    call_rows, drops = calls(insert_and_read(store, name, stamped))
    assert drops.is_empty()
    return call_rows


@dataclass(frozen=True, kw_only=True)
class Expected:
    spans: int
    traces: int
    kinds: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    joined: int = 1
    """Spans of each LLM call."""
    prompts: int = 0
    """LLM calls with messages in."""
    answered: int = 0
    """LLM calls with messages out; some instruments write an empty one where a call failed."""
    usage: int = 0
    """LLM calls with token counts; streams have none unless asked for."""
    requested: int = 0
    """Tool calls whose LLM call is known."""
    tokens: int = 0
    """LLM calls with token ids."""


OPENAI: dict[str, Any] = {
    "spans": 26,
    "traces": 13,
    "kinds": {"llm": 12, "embedding": 1},
    "failed": {"llm": 3},
    "prompts": 12,
    "answered": 9,
    "usage": 7,
}
NODES = {"llm": 9, "tool": 4, "agent": 5, "node": 12}
LANGCHAIN: dict[str, Any] = {
    "kinds": NODES,
    "failed": {"llm": 1, "tool": 1, "agent": 2, "node": 2},
    "prompts": 9,
    "answered": 9,
    "usage": 5,
    "requested": 4,
}
TRACELOOP: dict[str, Any] = {  # a workflow and an agent span around each agent
    **LANGCHAIN,
    "kinds": {**NODES, "agent": 10},
    "failed": {**LANGCHAIN["failed"], "agent": 4},
    "answered": 8,
}
OFFICIAL: dict[str, Any] = {  # no spans of nodes
    **LANGCHAIN,
    "kinds": {"llm": 9, "tool": 4, "agent": 5},
    "failed": {"llm": 1, "tool": 1, "agent": 2},
    "answered": 8,
}
LANGGRAPH: dict[str, Any] = {
    "traces": 3,
    "prompts": 8,
    "answered": 8,
    "usage": 8,
    "requested": 4,
}
AGENTS: dict[str, Any] = {
    "failed": {"llm": 1, "tool": 1, "agent": 1},
    "prompts": 11,
    "answered": 10,
    "usage": 8,
}
CAPTURES = {
    # the abandoned stream of twelve calls never ends its span
    "openai__traceloop-0.62.4": Expected(
        **{**OPENAI, "spans": 25, "traces": 15, "kinds": {"llm": 11, "embedding": 1}}
        | {"prompts": 11, "answered": 8}
    ),
    "openai__openinference-0.1.66": Expected(**OPENAI),
    "openai__openinference-0.1.66-genai": Expected(**OPENAI),
    "openai__otel-genai-openai-1.3b0": Expected(**OPENAI),
    "openai__otel-genai-openai-1.3b0-nocontent": Expected(
        **{**OPENAI, "prompts": 0, "answered": 0}
    ),
    # it does not know the two calls of the Responses API; messages are in log records
    "openai__otel-openai-v2-2.4b0-events": Expected(
        **{**OPENAI, "spans": 24, "kinds": {"llm": 10, "embedding": 1}, "usage": 5}
        | {"prompts": 0, "answered": 0}
    ),
    "openai__openinference-attr-limit-128": Expected(
        spans=2, traces=1, kinds={"llm": 1}, prompts=1, answered=1, usage=1
    ),
    "langchain__openinference-0.1.80": Expected(spans=30, traces=6, **LANGCHAIN),
    "langchain__openinference-0.1.80-genai": Expected(spans=30, traces=6, **LANGCHAIN),
    "langchain__traceloop-0.62.4": Expected(spans=36, traces=7, **TRACELOOP),
    "langchain__traceloop-0.53.4-legacy": Expected(spans=36, traces=6, **TRACELOOP),
    "langchain__traceloop-both": Expected(spans=45, traces=8, **TRACELOOP),
    "langchain__otel-genai-langchain-1.3b0": Expected(spans=18, traces=6, **OFFICIAL),
    "langchain__DOUBLE-user-named-packages": Expected(spans=48, traces=15, joined=2, **LANGCHAIN),
    "langchain__gateway-with-bridge": Expected(spans=57, traces=7, joined=3, tokens=8, **LANGCHAIN),
    "langchain__ltrain-distro-user-packages": Expected(
        spans=57, traces=7, joined=3, tokens=8, **LANGCHAIN
    ),
    "langchain__ltrain-distro-otel-genai": Expected(
        spans=36, traces=6, joined=2, tokens=8, **OFFICIAL
    ),
    "langgraph__openinference-0.1.80-genai": Expected(
        spans=32,
        kinds={"llm": 8, "tool": 4, "retrieval": 1, "agent": 3, "node": 16},
        failed={"tool": 3},
        **LANGGRAPH,
    ),
    # of a soft failure only the tool's payload would tell, and that is not there
    "langgraph__otel-genai-langchain-1.3b0": Expected(
        spans=16,
        kinds={"llm": 8, "tool": 4, "retrieval": 1, "agent": 3},
        failed={"tool": 2},
        **LANGGRAPH,
    ),
    # the handoff is a tool here
    "openai-agents__openinference-2.6.0-genai": Expected(
        spans=68,
        traces=6,
        joined=2,
        kinds={"llm": 11, "tool": 5, "agent": 13, "node": 17},
        requested=5,
        **AGENTS,
    ),
    "openai-agents__otel-genai-1.3b0": Expected(
        spans=42, traces=9, kinds={"llm": 11, "tool": 4, "agent": 13}, requested=4, **AGENTS
    ),
    "pydantic-ai__builtin-2.68.0": Expected(
        spans=14,
        traces=4,
        kinds={"llm": 7, "tool": 3, "agent": 4},
        failed={"llm": 1, "tool": 1, "agent": 1},
        prompts=6,
        answered=6,
        usage=6,
        requested=3,
    ),
    "autogen__builtin-0.7.5": Expected(
        spans=42, traces=18, kinds={"tool": 2, "agent": 4}, failed={"tool": 1}
    ),
    # each call is a client's span and a server's
    "mcp__builtin-2.3.0": Expected(spans=9, traces=5, kinds={"tool": 2}, failed={"tool": 1}),
    "reward__agentlightning-0.3.0": Expected(spans=6, traces=1),
    "reward__otel-and-openinference": Expected(spans=2, traces=2),
    "crash__ltrain-sigterm-open-span": Expected(spans=8, traces=6),
}


def test_every_capture_is_expected_to_say_something() -> None:
    there = {path.name.removesuffix(".otlp.json") for path in FIXTURES.glob("*.otlp.json")}
    assert there == CAPTURES.keys() | {f"{name}.logs" for name in WITH_LOGS}


@pytest.mark.parametrize("name", CAPTURES)
def test_every_call_of_a_capture_is_there_once(store: Store, name: str) -> None:
    stamped = name != "reward__agentlightning-0.3.0"  # which names its rollout itself
    spans, expected = insert_and_read(store, f"{name}.otlp.json", stamped), CAPTURES[name]
    call_rows, drops = calls(spans)
    llm, tools = (call_rows.filter(pl.col("kind") == kind) for kind in ("llm", "tool"))
    actual = Expected(
        spans=spans.height,
        traces=spans["trace_id"].n_unique(),
        kinds=Counter(call_rows["kind"]),
        failed=Counter(call_rows.filter(pl.col("status") == "error")["kind"]),
        joined=expected.joined,
        prompts=llm["input"].count(),
        answered=llm["output"].count(),
        usage=llm["output_tokens"].count(),
        requested=tools["requested_by"].count(),
        tokens=llm["prompt_token_ids"].count(),
    )
    assert actual == expected
    assert set(llm["source_spans"].list.len()) <= {expected.joined}
    assert drops.is_empty()
    used = call_rows["source_spans"].explode(empty_as_null=True).drop_nulls()
    assert used.is_unique().all()
    assert set(used) <= set(spans["span_id"])
    assert call_rows["capture_mismatch"].is_null().all()


@pytest.mark.parametrize(
    "name", [name for name, one in CAPTURES.items() if one.requested and "openai" not in name]
)
def test_every_tools_arguments_and_errors_are_exact(store: Store, name: str) -> None:
    tools = read_calls(store, f"{name}.otlp.json").filter(pl.col("kind") == "tool")
    assert set(tools["name"]) == {"get_weather"}
    prompts = [json.loads(text)["city"] for text in tools["arguments"]]
    failed = tools["status"].to_list()
    assert Counter(prompts) >= Counter(Paris=2, Atlantis=1)
    by_city = set(zip(prompts, failed, strict=True))
    assert {("Paris", "ok"), ("Atlantis", "error")} <= by_city
    results = {text for text in tools["result"] if text}
    assert "sunny in Paris" in results


WITH_LOGS = ("openai__otel-openai-v2-2.4b0-events", "reward__otel-and-openinference")


def insert_logs(store: Store, name: str) -> None:
    for document in documents(f"{name}.logs.otlp.json"):
        request = otlp_json.parse_json(json.dumps(document).encode(), LOGS.request)
        insert_otlp(store, request.SerializeToString(), LOGS)


def test_messages_in_log_records_are_those_of_their_spans(store: Store) -> None:
    name = WITH_LOGS[0]
    insert_logs(store, name)
    call_rows = read_calls(store, f"{name}.otlp.json")
    llm = call_rows.filter(pl.col("kind") == "llm")
    assert llm["input"].null_count() == 0
    assert (llm["output"].count(), llm["finish_reason"].count()) == (6, 7)
    first, second, *others = llm.to_dicts()
    assert texts(first["input"]) == [("system", "You are terse."), ("user", "weather in Paris?")]
    assert texts(first["output"]) == [("assistant", "get_weather")]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert texts(second["input"])[2:] == [("assistant", "get_weather"), ("tool", "sunny 21C")]
    assert texts(second["output"]) == [("assistant", "The answer is: sunny 21C")]
    assert [texts(row["input"])[0][1] for row in others if row["status"] == "error"] == [
        "error500",
        "error400",
        "sleepy",
    ]


def test_a_log_record_that_names_its_rollout_is_of_that(store: Store) -> None:
    insert_logs(store, WITH_LOGS[1])
    spans = insert_and_read(store, f"{WITH_LOGS[1]}.otlp.json")
    written = [(span.span_id, log) for span in iter_spans(spans) for log in span.logs]
    assert [(span, log.name, log.in_span) for span, log in written] == [
        ("186b79b670a761f3", "gen_ai.evaluation.result", True)
    ]


@pytest.mark.parametrize(
    "name", ["langchain__openinference-0.1.80", "langchain__DOUBLE-user-named-packages"]
)
def test_two_calls_failed_and_each_tool_has_its_requester(store: Store, name: str) -> None:
    call_rows = read_calls(store, f"{name}.otlp.json")
    failed = call_rows.filter(pl.col("status") == "error", pl.col("kind").is_in(["llm", "tool"]))
    assert failed["kind"].to_list() == ["tool", "llm"]
    tools = call_rows.filter(pl.col("kind") == "tool")
    assert tools["arguments"].to_list() == [
        '{"city": "Paris"}',
        '{"city": "Atlantis"}',
        '{"city": "Paris"}',
        '{"city": "Paris"}',
    ]
    before = call_rows.filter(pl.col("kind") == "llm", pl.col("finish_reason") == "tool_calls")
    assert tools["requested_by"].to_list() == before["call_id"].to_list()
    assert tools["result"].to_list() == ["sunny in Paris", None, "sunny in Paris", "sunny in Paris"]


def test_the_gateways_tokens_are_the_calls_own(store: Store) -> None:
    call_rows = read_calls(store, "langchain__gateway-with-bridge.otlp.json")
    llm = call_rows.filter(pl.col("kind") == "llm")
    lengths = llm.select(
        pl.col("prompt_token_ids").list.len(),
        pl.col("response_token_ids").list.first().list.len(),
        pl.col("response_logprobs").list.first().list.first(),
        pl.col("source_spans").list.len(),
    ).rows()
    assert lengths == [
        (14, 9, -0.25, 3),
        (24, 9, -0.25, 3),
        (14, 10, -0.25, 3),
        (None, None, None, 3),
        (14, 9, -0.25, 3),
        (24, 9, -0.25, 3),
        (3, 8, -0.25, 3),
        (14, 9, -0.25, 3),
        (24, 9, -0.25, 3),
    ]
    inside = llm.filter(pl.col("node").is_not_null())
    assert inside.select("agent", "node").unique().rows() == [("weather_agent", "model")]


def test_agents_that_name_no_rollout_are_found_by_the_gateways_traces(store: Store) -> None:
    call_rows = read_calls(store, "langchain__gateway-with-bridge.otlp.json", stamped=False)
    assert call_rows["execution_id"].unique().to_list() == [f"{ROLLOUT}.1"]
    counted = dict(call_rows.group_by("kind").len().iter_rows())
    assert counted == {"llm": 9, "tool": 4, "agent": 5, "node": 12}
