"""Hostile requests do not disturb other clients, which are served all the time."""

import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import grpc
import psutil
import pytest
from backports import zstd
from google.rpc import status_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.http_requests import ask, health

from ltrain_collector.signals.rowbinary import varint
from ltrain_collector.store import Store

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

MIB = 1 << 20

MEMORY = 1500 * MIB
"""MiB of memory that the server can use at the end of the tests."""

MAX_WAIT = 90
"""Seconds in which a good request is answered, however busy this machine is."""


class GoodClient(threading.Thread):
    """Sends one span after another and records the statuses of the responses."""

    def __init__(self, port: int, request_of: Callable[..., bytes]) -> None:
        super().__init__()
        self.port = port
        self.request_of = request_of
        self.stopped = threading.Event()
        self.statuses: list[int] = []

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=MAX_WAIT)
        while not self.stopped.is_set():
            body = self.request_of((2, len(self.statuses) + 1), ltrain__rollout__id="good")
            connection.request("POST", "/v1/traces", body, PROTOBUF)
            answer = connection.getresponse()
            answer.read()
            self.statuses.append(answer.status)
            self.stopped.wait(0.05)
        connection.close()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, request_of: Callable[..., bytes], run_up: Any
) -> Iterator[Any]:
    """A server for all of these tests, and a client whose requests must always succeed."""
    up = run_up(tmp_path_factory.mktemp("hostile") / "store")
    good = GoodClient(up.otlp, request_of)
    good.start()
    try:
        yield up
        good.stopped.set()
        good.join()
        assert set(good.statuses) == {200}
        with Store.open(up.dsn) as store:
            sql = "SELECT count() AS n FROM otel.spans WHERE RolloutId = 'good'"
            assert store.query(sql)["n"].item() == len(good.statuses)
        assert health(up.otlp)["waiting_bytes"] == 0
        assert psutil.Process(up.pid).memory_info().rss < MEMORY
    finally:
        good.stopped.set()
        good.join()
        ended = up.stop()
    assert ended == 0


def post(up: Any, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    answer = ask(up.otlp, "POST", "/v1/traces", body, headers, timeout=60)
    if answer.status == 200:
        return 200, ""
    if headers["Content-Type"] == JSON["Content-Type"]:
        return answer.status, str(answer.json["message"])
    return answer.status, str(status_pb2.Status.FromString(answer.body).message)


def call(up: Any, body: bytes) -> grpc.RpcError | None:
    with grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel:
        try:
            channel.unary_unary(TRACES)(body, timeout=60)
        except grpc.RpcError as error:
            return error
    return None


def nested(deep: int) -> bytes:
    """Return a request with a value nested `depth` times."""
    heads: list[bytes] = []
    size = 0
    for _ in range(deep):
        for tag in (b"\x0a", b"\x2a"):  # ArrayValue.values, AnyValue.array_value
            heads.append(tag + varint(size))
            size += len(heads[-1])
    for tag in (b"\x12", b"\x0a", b"\x0a", b"\x0a"):  # value, attributes, resource, resource_spans
        heads.append(tag + varint(size))
        size += len(heads[-1])
    return b"".join(reversed(heads))


def nested_json(deep: int) -> bytes:
    value = '{"arrayValue":{"values":[' * deep + "{}" + "]}}" * deep
    attributes = f'{{"resource":{{"attributes":[{{"key":"k","value":{value}}}]}}}}'
    return f'{{"resourceSpans":[{attributes}]}}'.encode()


def of_span(fields: bytes) -> bytes:
    """Return a request with a span that has additional raw fields."""
    start = (1_790_000_000_000_000_000).to_bytes(8, "little")
    body = b"\x0a\x10" + b"\x05" * 16 + b"\x12\x08" + b"\x05" * 8 + b"\x39" + start + fields
    for tag in (b"\x12", b"\x12", b"\x0a"):  # spans, scope_spans, resource_spans
        body = tag + varint(len(body)) + body
    return body


def many_attributes(request_of: Callable[..., bytes]) -> bytes:
    request = ExportTraceServiceRequest.FromString(request_of((3, 1)))
    span = request.resource_spans[0].scope_spans[0].spans[0]
    for key in range(1_000_000):
        span.attributes.add(key=f"k{key}").value.int_value = key
    return bytes(request.SerializeToString())


def repeated() -> bytes:
    """Return a request with a resource of 8 MiB and a thousand spans."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="k").value.string_value = "x" * 8 * MIB
    spans = resource.scope_spans.add().spans
    for _ in range(1000):
        spans.add()
    return bytes(request.SerializeToString())


WRONG_TEXT = b"\x0a\x05\x1a\x03\xed\xa0\x80"
"""A schema URL that is half of a surrogate pair."""


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"\xff" * 1000, 400, "not an OTLP"),
        (WRONG_TEXT, 400, "not an OTLP"),
        (nested(100_000), 400, "not an OTLP"),
        (repeated(), 413, "repeat more than 64 MiB"),
        (of_span(b"\x5a\x00" * (32 * MIB - 100)), 413, "contains more than 2097152 messages"),
        # the largest that is accepted takes ten seconds of CPU
        pytest.param(of_span(b"\x5a\x00" * (2 * MIB - 100)), 200, "", marks=pytest.mark.nightly),
    ],
    ids=["noise", "surrogate", "nested", "repeated", "too many events", "many events"],
)
def test_a_hostile_message(server: Any, body: bytes, status: int, says: str) -> None:
    statuses = post(server, body, PROTOBUF)
    assert statuses[0] == status
    assert says in statuses[1]
    error = call(server, body)
    if error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert says in error.details()
    assert bool(error) == (status != 200)


@pytest.mark.parametrize(
    "body",
    [b"{" * 100_000, nested_json(100_000), nested_json(300), b'{"resourceSpans":"\\ud800"}'],
    ids=["braces", "deep", "deeper than protobuf", "surrogate"],
)
def test_hostile_json(server: Any, body: bytes) -> None:
    status, says = post(server, body, JSON)
    assert status == 400
    assert "not an OTLP ExportTraceServiceRequest in JSON" in says


@pytest.mark.parametrize(
    ("encoding", "compress", "size"),
    [
        ("gzip", gzip.compress, 512 * MIB),
        pytest.param("deflate", zlib.compress, 512 * MIB, marks=pytest.mark.nightly),
        ("zstd", zstd.compress, 1024 * MIB),
    ],
    ids=["gzip", "deflate", "zstd"],
)
def test_a_bomb(server: Any, encoding: str, compress: Callable[[bytes], bytes], size: int) -> None:
    body = compress(bytes(size))
    before = psutil.Process(server.pid).memory_info().rss
    for _ in range(4):
        status, says = post(server, body, {**PROTOBUF, "Content-Encoding": encoding})
        assert (status, says) == (
            413,
            "The body is larger than the limit of 64 MiB. Send less at a time.",
        )
        if encoding != "zstd":
            error = call(server, body)
            assert error and "larger than the limit of 64 MiB" in error.details()
    assert psutil.Process(server.pid).memory_info().rss - before < 400 * MIB


def test_a_million_attributes(server: Any, request_of: Callable[..., bytes]) -> None:
    assert post(server, many_attributes(request_of), PROTOBUF) == (200, "")
    with Store.open(server.dsn) as store:
        sql = "SELECT length(SpanAttributes) AS n FROM otel.spans WHERE TraceId = {t:String}"
        assert store.query(sql, {"t": f"{3:032x}"})["n"].to_list() == [1_000_000]


def test_json_of_many_attributes(server: Any) -> None:
    attributes = [{"key": f"k{key}", "value": {"intValue": key}} for key in range(300_000)]
    span = {
        "traceId": f"{4:032x}",
        "spanId": f"{1:016x}",
        "startTimeUnixNano": 1_790_000_000_000_000_000,
        "attributes": attributes,
    }
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    assert post(server, body, JSON) == (200, "")
    assert post(server, b"[" * (17 * MIB), JSON) == (
        413,
        "The body is larger than the limit of 16 MiB. Send less at a time.",
    )


def raw(up: Any, *parts: bytes, port: int = 0) -> bytes:
    """Send bytes, close the sending side, and return the response."""
    with socket.create_connection(("127.0.0.1", port or up.otlp), 30) as connection:
        for part in parts:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: -5\r\n\r\nabc", b"400"),
        (b"Content-Length: many\r\n\r\nabc", b"400"),
        (b"Content-Length: 99999999999999999999999\r\n\r\nabc", b"400"),
        (b"Content-Length: 9999999999999\r\n\r\nabc", b"413"),
        (b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabc", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", b"400"),
    ],
)
def test_an_impossible_content_length(server: Any, head: bytes, status: bytes) -> None:
    assert raw(server, HEAD + head).split()[1] == status


def test_an_answer_reaches_a_client_that_has_closed_its_side(server: Any) -> None:
    refused = HEAD + b"Content-Length: 9999999999999\r\n\r\nabc"
    statuses = [raw(server, refused)[9:12] for _ in range(200)]
    assert statuses == [b"413"] * 200


def test_a_length_that_is_too_short_ends_the_connection(server: Any) -> None:
    answer = raw(server, HEAD + b"Content-Length: 0\r\n\r\n" + b"more than that")
    statuses = [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP")]
    assert statuses[-1] == b"400"


def test_a_content_length_that_is_too_long_is_a_disconnect(server: Any) -> None:
    assert raw(server, HEAD + b"Content-Length: 1000\r\n\r\n" + b"half") == b""


@pytest.mark.parametrize("noise", [HEAD + b"\r\n", b"\x00" * 5000, b"PRI * HTTP/2.0\r\n\r\nSM"])
def test_what_is_no_grpc(server: Any, noise: bytes) -> None:
    raw(server, noise, port=server.grpc)
    assert call(server, b"") is None


def test_a_body_that_does_not_arrive_in_time_is_refused(server: Any) -> None:
    never = threading.Event()
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc}")
    stalled = channel.stream_unary(TRACES).future(iter(never.wait, None), timeout=30)
    with socket.create_connection(("127.0.0.1", server.otlp), 30) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        begun = time.monotonic()
        for _ in range(100):  # a byte now and then does not help
            try:
                connection.sendall(b"x")
            except OSError:
                break
            if time.monotonic() - begun > 10.5:
                break
            threading.Event().wait(0.2)
        answer = connection.recv(65536)
        assert connection.recv(65536) == b""
    assert answer.split()[1] == b"503"
    assert b"retry-after: 1" in answer
    assert stalled.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert stalled.details() == (
        "No complete message arrived within 10 seconds. Send less at a time."
    )
    never.set()
    channel.close()
    assert health(server.otlp)["traces"]["refused"]["too_slow"] == 2
