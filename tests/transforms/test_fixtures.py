"""Captures of real LangChain agents, through OTLP and chDB, read exactly."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read

FIXTURES = Path(__file__).parent.parent / "fixtures"


ROLLOUT = "ro-9"
"""What the captured gateway wrote on its own spans."""


def requests(name: str, stamped: bool) -> list[bytes]:
    """Read a capture, one or more OTLP-JSON documents, `stamped` by each process's environment."""
    text, position, found = (FIXTURES / name).read_text().strip(), 0, []
    while position < len(text):
        document, position = json.JSONDecoder().raw_decode(text, position)
        position += len(text[position:]) - len(text[position:].lstrip())
        for resource in document["resourceSpans"] if stamped else ():
            stamp = {"key": "ltrain.rollout.id", "value": {"stringValue": ROLLOUT}}
            resource["resource"].setdefault("attributes", []).append(stamp)
        request = ParseDict(_with_base64_ids(document), ExportTraceServiceRequest())
        found.append(bytes(request.SerializeToString()))
    return found


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


def read_calls(store: Store, name: str, stamped: bool = True) -> pl.DataFrame:
    for request in requests(name, stamped):
        store.insert_otlp(request)
    spans, drops = read(store, Source(), Selection())
    assert drops.is_empty()
    return calls(spans)


@pytest.mark.parametrize(
    ("name", "spans", "traces"),
    [
        ("langchain__openinference-0.1.80", 30, 6),
        ("langchain__DOUBLE-user-named-packages", 48, 15),
        ("langchain__gateway-with-bridge", 57, 7),
    ],
)
def test_llm_and_tool_calls_are_exact(store: Store, name: str, spans: int, traces: int) -> None:
    found = read_calls(store, f"{name}.otlp.json")
    counted = dict(found.group_by("kind").len().iter_rows())
    assert counted == {"llm": 9, "tool": 4, "agent": 5, "node": 12}
    stored = store.query("SELECT count() AS n, uniqExact(TraceId) AS t FROM otel.spans")
    assert stored.row(0) == (spans, traces)


@pytest.mark.parametrize(
    "name", ["langchain__openinference-0.1.80", "langchain__DOUBLE-user-named-packages"]
)
def test_two_calls_failed_and_each_tool_has_its_requester(store: Store, name: str) -> None:
    found = read_calls(store, f"{name}.otlp.json")
    failed = found.filter(pl.col("status") == "error", pl.col("kind").is_in(["llm", "tool"]))
    assert failed["kind"].to_list() == ["tool", "llm"]
    tools = found.filter(pl.col("kind") == "tool")
    assert tools["arguments"].to_list() == [
        '{"city": "Paris"}',
        '{"city": "Atlantis"}',
        '{"city": "Paris"}',
        '{"city": "Paris"}',
    ]
    before = found.filter(pl.col("kind") == "llm", pl.col("finish_reason") == "tool_calls")
    assert tools["requested_by"].to_list() == before["call_id"].to_list()
    assert tools["result"].to_list() == ["sunny in Paris", None, "sunny in Paris", "sunny in Paris"]


def test_the_gateways_tokens_are_the_calls_own(store: Store) -> None:
    found = read_calls(store, "langchain__gateway-with-bridge.otlp.json")
    llm = found.filter(pl.col("kind") == "llm")
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
    found = read_calls(store, "langchain__gateway-with-bridge.otlp.json", stamped=False)
    assert found["execution_id"].unique().to_list() == [f"{ROLLOUT}.1"]
    counted = dict(found.group_by("kind").len().iter_rows())
    assert counted == {"llm": 9, "tool": 4, "agent": 5, "node": 12}
