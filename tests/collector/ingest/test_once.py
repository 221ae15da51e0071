"""Duplicate requests are read once, also over different protocols and in different commits."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from tests.http_requests import Answer, post

from ltrain_collector.signals import LOGS, METRICS, TRACES, Signal
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
MONTH = 31 * 86_400 * 10**9


def records() -> Message:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="ltrain.rollout.id").value.string_value = "once"
    scoped = resource.scope_logs.add()
    for number in range(20):
        scoped.log_records.add(time_unix_nano=NOON + number).body.string_value = "tick"
    return request


def points() -> Message:
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "once"
    metrics = resource.scope_metrics.add().metrics
    for number in range(20):
        metrics.add(name="g").gauge.data_points.add(time_unix_nano=NOON + number, as_int=1)
        metrics.add(name="s").sum.data_points.add(time_unix_nano=NOON + number, as_int=1)
    return request


def counted(store: Store) -> dict[str, int]:
    of = {
        "spans": "RolloutId = 'once'",
        "logs": "RolloutId = 'once'",
        "metrics_gauge": "ServiceName = 'once'",
        "metrics_sum": "ServiceName = 'once'",
    }
    sql = "SELECT count() AS n FROM otel.{} WHERE {}"
    return {view: store.query(sql.format(view, which))["n"].item() for view, which in of.items()}


def test_a_request_that_is_sent_again_is_read_once(
    up: Any, request_of: Callable[..., bytes]
) -> None:
    spans = request_of(*((7, number) for number in range(1, 21)), ltrain__rollout__id="once")
    sent: list[tuple[Signal, bytes]] = [
        (TRACES, spans),
        (LOGS, records().SerializeToString()),
        (METRICS, points().SerializeToString()),
    ]
    with (
        Store.open(up.dsn) as store,
        grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel,
    ):
        for signal, body in sent:
            for _ in range(2):  # each an insert of its own
                assert post(up.otlp, body, signal.path).status == 200
            assert channel.unary_unary(f"/{signal.service}/Export")(body) == b""
            with ThreadPoolExecutor(4) as pool:  # and some of one insert
                answers = pool.map(lambda _, s=signal, b=body: post(up.otlp, b, s.path), range(4))
                assert {answer.status for answer in answers} == {200}
        expected = {"spans": 20, "logs": 20, "metrics_gauge": 20, "metrics_sum": 20}
        assert counted(store) == expected
        copies = store.query("SELECT count() AS n FROM otel.otel_logs")["n"].item()
        assert copies > 20  # they are there, and not read


def test_one_wrong_clock_fails_alone(up: Any, request_of: Callable[..., bytes]) -> None:
    wild = b"".join(
        request_of((9, number + 1), start=NOON - number * MONTH, ltrain__rollout__id="wild")
        for number in range(150)
    )
    good = [request_of((10, number), ltrain__rollout__id="tame") for number in range(1, 9)]
    barrier = threading.Barrier(9)

    def send(body: bytes) -> Answer:
        barrier.wait()
        return post(up.otlp, body)

    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(send, [wild, *good]))
    assert answers[0].status == 400
    says = status_pb2.Status.FromString(answers[0].body).message
    assert says.startswith("The times in this request are in more than 100 different months.")
    assert {answer.status for answer in answers[1:]} == {200}
    with Store.open(up.dsn) as store:
        sql = "SELECT RolloutId FROM otel.spans WHERE RolloutId IN ('wild', 'tame')"
        assert store.query(sql)["RolloutId"].to_list() == ["tame"] * 8
