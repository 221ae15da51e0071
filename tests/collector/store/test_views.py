from collections.abc import Callable
from datetime import UTC, datetime

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp

from ltrain_collector.signals import LOGS
from ltrain_collector.store.trace_store import Store

NOON = 1_790_000_000_000_000_000
IDENTITY = {
    "ltrain__run__id": "demo",
    "ltrain__mode": "train",
    "ltrain__wave": "2",
    "ltrain__task__id": "t1",
    "ltrain__rollout__id": "r1",
    "ltrain__attempt__id": "1",
}
WHO = {
    "run": "demo",
    "mode": "train",
    "wave": 2,
    "task": "t1",
    "rollout": "r1",
    "attempt": "1",
}


def test_a_closed_rollout_is_one_row(folder: Store, request_of: Callable[..., bytes]) -> None:
    closing = request_of(
        (1, 1),
        name="ltrain.rollout",
        scope="ltrain.runner",
        seconds=2.5,
        ltrain__sample__index="3",
        ltrain__rollout__outcome="ok",
        ltrain__rollout__llm_calls="4",
        **IDENTITY,
    )
    for _ in range(2):
        insert_otlp(folder, closing)
    assert folder.query("SELECT * FROM otel.rollouts").to_dicts() == [
        {
            "closed": datetime.fromtimestamp(NOON / 1e9, UTC),
            **WHO,
            "sample": 3,
            "outcome": "ok",
            "reason": "",
            "llm_calls": 4,
            "duration": 2.5,
        }
    ]


def test_an_evaluation_is_one_reward(folder: Store, request_of: Callable[..., bytes]) -> None:
    judged = request_of(
        (1, 2),
        name="gen_ai.evaluation.result",
        scope="ltrain.runner",
        gen_ai__evaluation__score__value="0.5",
        ltrain__reward__scope="rollout",
        **IDENTITY,
    )
    insert_otlp(folder, judged)
    (row,) = folder.query("SELECT * EXCEPT (judged, trace, span) FROM otel.evaluations").to_dicts()
    assert row == {
        **WHO,
        "name": "reward",
        "value": 0.5,
        "label": "",
        "explanation": "",
        "scope": "rollout",
        "source": "runner",
        "parent": "",
    }


def test_events_and_log_records_are_evaluations_too(
    folder: Store, request_of: Callable[..., bytes]
) -> None:
    traces = ExportTraceServiceRequest.FromString(request_of((1, 2), **IDENTITY))
    span = traces.resource_spans[0].scope_spans[0].spans[0]
    event = span.events.add(name="gen_ai.evaluation.result", time_unix_nano=NOON)
    event.attributes.add(key="gen_ai.evaluation.score.value").value.double_value = 0.25
    insert_otlp(folder, traces.SerializeToString())
    logs = ExportLogsServiceRequest()
    record = logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=NOON)
    record.event_name = "gen_ai.evaluation.result"
    record.trace_id, record.span_id = span.trace_id, span.span_id
    record.attributes.extend(span.attributes)
    record.attributes.add(key="gen_ai.evaluation.name").value.string_value = "style"
    record.attributes.add(key="gen_ai.evaluation.score.value").value.double_value = 0.75
    insert_otlp(folder, logs.SerializeToString(), LOGS)
    columns = "name, value, run, mode, wave, task, rollout, attempt, source, parent"
    rows = folder.query(f"SELECT {columns} FROM otel.evaluations ORDER BY name").to_dicts()
    common = {**WHO, "source": "agent", "parent": f"{2:016x}"}
    expected = [{"name": "reward", "value": 0.25}, {"name": "style", "value": 0.75}]
    assert rows == [{**each, **common} for each in expected]


def test_a_gateway_span_is_one_llm_call(folder: Store, request_of: Callable[..., bytes]) -> None:
    attributes = {
        "gen_ai__operation__name": "chat",
        "gen_ai__response__model": "policy",
        "gen_ai__usage__input_tokens": "12",
        "gen_ai__usage__output_tokens": "3",
        "gen_ai__request__temperature": "1",
        "ltrain__policy__name": "sql",
        "ltrain__policy__version": "7",
    }
    insert_otlp(folder, request_of((1, 3), scope="ltrain.gateway", **attributes, **IDENTITY))
    insert_otlp(folder, request_of((1, 4), scope="openai", **attributes, **IDENTITY))
    (row,) = folder.query("SELECT * FROM otel.llm_calls").to_dicts()
    known = {**WHO, "policy": "sql", "version": 7, "model": "policy", "temperature": 1.0}
    assert known.items() <= row.items()
    assert (row["input_tokens"], row["output_tokens"], row["delivered"]) == (12, 3, True)
