"""Requests beyond the memory limit are refused before they are read, and accepted later."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2, status_pb2
from tests.http_requests import health

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"

MIB = 1 << 20


def holding(up: Any, size: int) -> socket.socket:
    """Send a request without its last byte."""
    connection = socket.create_connection(("127.0.0.1", up.otlp), 30)
    connection.sendall(HEAD + f"Content-Length: {size + 1}\r\n\r\n".encode() + bytes(size))
    return connection


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        threading.Event().wait(0.05)


def test_beyond_the_memory_limit_clients_retry_later(
    start: Callable[..., Any], request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    up = start(tmp_path / "store")
    body = request_of((1, 1), text="x" * 3 * MIB)
    before = psutil.Process(up.pid).memory_info().rss
    held = [holding(up, 62 * MIB) for _ in range(4)]
    held.append(holding(up, 6 * MIB))
    wait_for(lambda: health(up.otlp)["waiting_bytes"] == 254 * MIB)

    with socket.create_connection(("127.0.0.1", up.otlp), 30) as connection:
        expected = (
            f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(HEAD + expected.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    # and not 100: it is refused before it is sent
    assert answer.split()[1] == b"503"
    assert b"retry-after: 1" in answer
    assert b"Requests in memory take 254 MiB of 256 MiB" in answer

    with grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel:
        export = channel.unary_unary(TRACES)
        with pytest.raises(grpc.RpcError) as caught:
            export(body, timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing = dict(caught.value.trailing_metadata())
        status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
        retry = error_details_pb2.RetryInfo()
        assert status.details[0].Unpack(retry)
        assert retry.retry_delay.seconds == 1
        assert psutil.Process(up.pid).memory_info().rss - before < 500 * MIB

        for connection in held:
            connection.close()
        wait_for(lambda: health(up.otlp)["waiting_bytes"] == 0)
        assert export(body, timeout=20) == b""
    assert health(up.otlp)["traces"] == {
        "requests": 1,
        "accepted": 1,
        "rejected": 0,
        "refused": {"overloaded": 2},
    }
