"""The spans that ClickHouse makes of the log records of coding CLIs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector import client_events
from ltrain_collector.signals import LOGS
from ltrain_collector.store import Store

SECOND = 10**9
TIME = 1_795_956_711 * SECOND


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_empty_store(tmp_path / "store") as store:
        yield store


def request(attributes: Mapping[str, str], time: int = TIME) -> bytes:
    message = ExportLogsServiceRequest()
    logs = message.resource_logs.add()
    logs.resource.attributes.add(key="service.name").value.string_value = "cli"
    scoped = logs.scope_logs.add()
    scoped.scope.name = "cli"
    record = scoped.log_records.add(time_unix_nano=time)
    for name, value in attributes.items():
        record.attributes.add(key=name).value.string_value = value
    return bytes(message.SerializeToString())


TOOL = {
    "event.name": "qwen-code.tool_call",
    "session.id": "s",
    "prompt_id": "p",
    "ltrain.rollout.id": "r",
    "function_name": "read_file",
    "function_args": "{}",
    "duration_ms": "1500",
    "success": "false",
    "error": "no such file",
    "error_type": "not_found",
}


def test_a_record_of_a_tool_is_a_tool_of_the_reports(store: Store) -> None:
    insert_otlp(store, request(TOOL), LOGS)
    query = "SELECT rollout, tool, status, error, duration FROM otel.tool_calls"
    assert store.query(query).rows() == [("r", "read_file", "error", "not_found", 1.5)]
    query = "SELECT SpanName, SessionId, StatusMessage, Sender, ServiceName FROM otel.spans"
    expected = ("qwen-code.tool_call", "s", "no such file", "local", "cli")
    assert store.query(query).rows() == [expected]
    query = (
        "SELECT toUnixTimestamp64Nano(Timestamp), length(TraceId), length(SpanId) FROM otel.spans"
    )
    assert store.query(query).rows() == [(TIME - 3 * SECOND // 2, 32, 16)]


def test_the_metadata_of_a_tool_may_say_that_it_failed(store: Store) -> None:
    tool = {"event.name": "gemini_cli.tool_call", "session.id": "s", "success": "true"}
    metadata = ('{"exitCode":1,"isError":true}', '{"exitCode":0}', "[")
    for number, text in enumerate(metadata):
        insert_otlp(store, request({**tool, "call_id": f"c{number}", "metadata": text}), LOGS)
    query = "SELECT status, error FROM otel.tool_calls ORDER BY status"
    assert store.query(query).rows() == [("error", "error"), ("ok", ""), ("ok", "")]


def test_records_of_a_prompt_are_below_its_span(store: Store) -> None:
    prompt = {"event.name": "gemini_cli.user_prompt", "session.id": "s", "prompt_id": "p"}
    insert_otlp(store, request(prompt), LOGS)
    insert_otlp(store, request({**TOOL, "ltrain.rollout.id": ""}), LOGS)
    query = "SELECT SpanName, TraceId, SpanId, ParentSpanId FROM otel.spans ORDER BY SpanName"
    (_, trace, above, parent), (_, *tool) = store.query(query).rows()
    assert (tool[0], tool[2], parent) == (trace, above, "")


def test_other_records_and_those_without_a_time_make_no_span(store: Store) -> None:
    for name in ("qwen-code.config", "codex.sse_event", "claude_code.tool_decision", ""):
        insert_otlp(store, request({"event.name": name, "session.id": "s"}), LOGS)
    insert_otlp(store, request(TOOL, time=0), LOGS)
    assert store.query("SELECT count() FROM otel.logs").item() == 5
    assert store.query("SELECT count() FROM otel.spans").item() == 0


def test_records_that_were_stored_before_get_their_spans_with_the_migration(store: Store) -> None:
    store.command(f"DROP VIEW otel.{client_events.VIEW}")
    store.command(f"DELETE FROM otel.ltrain_migrations WHERE step = '{client_events.CREATED}'")
    insert_otlp(store, request(TOOL), LOGS)
    assert store.query("SELECT count() FROM otel.spans").item() == 0
    assert store.migrate().steps == (client_events.CREATED,)
    insert_otlp(store, request(TOOL), LOGS)  # sent again, it is the same span
    insert_otlp(store, request(TOOL, TIME + 1), LOGS)
    assert store.query("SELECT count() FROM otel.spans").item() == 2


def test_a_view_of_an_older_store_gets_the_query_of_today(store: Store) -> None:
    query = client_events._spans().replace("'responseId'", "'other'")
    store.command(f"ALTER TABLE otel.{client_events.VIEW} MODIFY QUERY {query}")
    store.command(f"DELETE FROM otel.ltrain_migrations WHERE step = '{client_events.CHANGED}'")
    answer = {
        "event.name": "gemini_cli.api_response",
        "session.id": "s",
        "response_text": '[{"responseId": "r1"}]',
    }
    ids = "SELECT SpanAttributes['gen_ai.response.id'] FROM otel.spans ORDER BY Timestamp"
    insert_otlp(store, request(answer), LOGS)
    assert store.query(ids).rows() == [("",)]
    assert store.migrate().steps == (client_events.CHANGED,)
    insert_otlp(store, request(answer, TIME + 1), LOGS)
    assert store.query(ids).rows() == [("",), ("r1",)]
