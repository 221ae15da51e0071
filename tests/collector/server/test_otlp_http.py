import gzip
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest
from backports import zstd
from google.protobuf import json_format
from google.rpc import status_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from tests.http_requests import ask, health, post

from ltrain_collector.store import Store

PROTOBUF = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def store(up: Any) -> Iterator[Store]:
    with Store.open(up.dsn) as opened:
        yield opened


def count(store: Store, rollout: str) -> int:
    sql = "SELECT count() AS n FROM otel.spans WHERE RolloutId = {rollout:String}"
    return int(store.query(sql, {"rollout": rollout})["n"].item())


def test_rows_are_readable_once_they_are_answered_for(
    up: Any, store: Store, request_of: Callable[..., bytes]
) -> None:
    for number in range(5):
        body = request_of((1, number + 1), ltrain__rollout__id="at-once")
        assert post(up.otlp, body)[:2] == (200, b"")
        assert count(store, "at-once") == number + 1


def test_requests_that_arrive_together_are_inserted_together(
    up: Any, store: Store, request_of: Callable[..., bytes]
) -> None:
    before = health(up.otlp)
    barrier = threading.Barrier(16)

    def one(number: int) -> int:
        body = request_of((number + 1, 1), ltrain__rollout__id="together")
        barrier.wait()
        return post(up.otlp, body).status

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(one, range(16))) == {200}
    after = health(up.otlp)
    assert after["traces"]["accepted"] - before["traces"]["accepted"] == 16
    assert after["waiting_bytes"] == 0
    assert after["requests"] - before["requests"] == 16
    assert after["inserts"] - before["inserts"] < 12
    assert count(store, "together") == 16


def test_an_invalid_span_is_reported_and_the_others_stay(
    up: Any, store: Store, request_of: Callable[..., bytes]
) -> None:
    good = request_of((1, 1), (1, 2), ltrain__rollout__id="partly")
    bad = request_of((1, 3), start=2**63, ltrain__rollout__id="partly")
    status, body, _ = post(up.otlp, good + bad)
    partial = ExportTraceServiceResponse.FromString(body).partial_success
    assert (status, partial.rejected_spans) == (200, 1)
    assert "more than a year ahead" in partial.error_message
    assert count(store, "partly") == 2


JSON = {"Content-Type": "application/json"}
ZIPPED = {**PROTOBUF, "Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "says"),
    [
        ("/v1/traces", b"{}", {"Content-Type": "text/plain"}, 415, "http/protobuf"),
        ("/v1/traces", b"\xff\xff", PROTOBUF, 400, "not an OTLP ExportTraceServiceRequest"),
        ("/v1/logs", b"\xff\xff", PROTOBUF, 400, "not an OTLP ExportLogsServiceRequest"),
        ("/v1/metrics", b"{", JSON, 400, "not an OTLP ExportMetricsServiceRequest in JSON"),
        ("/v1/traces", b"abc", ZIPPED, 400, "not valid gzip"),
        (
            "/v1/traces",
            gzip.compress(bytes(65 << 20), 1, mtime=0),
            ZIPPED,
            413,
            "of 64 MiB",
        ),
        (
            "/v1/traces",
            b"",
            {**PROTOBUF, "Content-Length": str(1 << 40)},
            413,
            "of 64 MiB",
        ),
        ("/v1/traces", b"abc", {**PROTOBUF, "Content-Encoding": "br"}, 415, "zstd or none"),
        ("/v1/trace", b"", PROTOBUF, 404, "POST /v1/traces"),
    ],
)
def test_a_bad_request_gets_the_reason(
    up: Any, path: str, body: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    answer = ask(up.otlp, "POST", path, body, headers)
    assert answer.status == status
    rpc_status = status_pb2.Status()
    if headers is JSON or (status == 415 and "Content-Encoding" not in headers):
        json_format.Parse(answer.body, rpc_status)
    else:
        rpc_status.ParseFromString(answer.body)
    assert rpc_status.code
    assert says in rpc_status.message


def test_another_method_gets_the_supported_one(up: Any) -> None:
    answer = ask(up.otlp, "GET", "/v1/logs")
    assert answer.status == 405
    assert answer.json["message"] == "GET /v1/logs is not served; use POST /v1/logs."


def test_json_is_answered_in_json(up: Any, store: Store) -> None:
    span = {
        "traceId": "0a" * 16,
        "spanId": "0b" * 8,
        "name": "from a browser",
        "startTimeUnixNano": "1790000000000000000",
        "attributes": [{"key": "ltrain.rollout.id", "value": {"stringValue": "json"}}],
    }
    late = {**span, "startTimeUnixNano": str(2**63)}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span, late]}]}]}).encode()
    answer = ask(up.otlp, "POST", "/v1/traces", body, JSON)
    assert answer.status == 200
    assert answer.json == {
        "partialSuccess": {
            "rejectedSpans": "1",
            "errorMessage": "start_time_unix_nano is 0 or more than a year ahead",
        }
    }
    stored = store.query("SELECT TraceId, SpanName FROM otel.spans WHERE RolloutId = 'json'")
    assert stored.rows() == [("0a" * 16, "from a browser")]
    assert ask(up.otlp, "POST", "/v1/logs", b"{}", JSON)[:2] == (200, b"{}")


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstd.compress)],
)
def test_a_packed_request_is_read(
    up: Any,
    store: Store,
    request_of: Callable[..., bytes],
    encoding: str,
    pack: Callable[[bytes], bytes],
) -> None:
    body = pack(request_of((1, 1), ltrain__rollout__id=f"packed-{encoding}"))
    headers = {"Content-Encoding": encoding}
    assert post(up.otlp, body, **headers)[:2] == (200, b"")
    assert count(store, f"packed-{encoding}") == 1


def test_refused_requests_are_counted_by_reason(up: Any) -> None:
    before = health(up.otlp)["logs"]
    post(up.otlp, b"\xff", "/v1/logs")
    after = health(up.otlp)["logs"]
    refused = before["refused"].get("malformed", 0) + 1
    assert after == {**before, "refused": {**before["refused"], "malformed": refused}}


def test_an_empty_request_is_a_good_one(up: Any) -> None:
    assert post(up.otlp, b"")[:2] == (200, b"")


def test_a_client_that_disconnects_in_mid_stream_affects_no_other(up: Any) -> None:
    connection = HTTPConnection("127.0.0.1", up.otlp)
    connection.putrequest("POST", "/v1/traces")
    connection.putheader("Content-Type", "application/x-protobuf")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"half")
    connection.close()
    assert ask(up.otlp, "GET", "/health").status == 200
