"""Feedback that arrives after the end of what it judges counts as a reward inside it does."""

import json
from typing import Any

import polars as pl
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp

from ltrain_collector.feedback import Feedback, to_request
from ltrain_collector.signals import LOGS
from ltrain_collector.store import Store
from ltrain_transforms.calls import calls, executions
from ltrain_transforms.recipe import Recipe, Source
from ltrain_transforms.rewards import read_evaluations
from ltrain_transforms.source import Selection, read_spans

NOON = 1_790_000_000_000_000_000
DAY = 86_400 * 10**9
TRACES = ["1" * 32, "2" * 32, "3" * 32]
OF_TRACE = {TRACES[0]: "morning", TRACES[1]: "morning", TRACES[2]: "evening"}


@pytest.fixture
def traffic(store: Store) -> Store:
    """Three requests of two sessions, as a service without ltrain's identity sends them."""
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    for number, (trace, session) in enumerate(OF_TRACE.items(), 1):
        span = scoped.spans.add(name="chat", start_time_unix_nano=NOON, end_time_unix_nano=NOON + 5)
        span.trace_id, span.span_id = bytes.fromhex(trace), number.to_bytes(8, "big")
        message = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}])
        for key, value in (
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.conversation.id", session),
            ("gen_ai.input.messages", message),
        ):
            span.attributes.add(key=key).value.string_value = value
    insert_otlp(store, request.SerializeToString())
    return store


def send(store: Store, *feedback: dict[str, Any], late: int = DAY) -> None:
    parsed = [Feedback.model_validate({"name": "thumbs", **one}) for one in feedback]
    insert_otlp(store, to_request(parsed, NOON + late).SerializeToString())


def judged(
    store: Store, execution: str, mode: str | None = None
) -> tuple[dict[str, float], list[str]]:
    """Return the value of each execution with feedback, and the reasons of drops."""
    source = Source.model_validate({"execution": execution})
    spans, drops = read_spans(store, source, Selection(mode=mode))
    counted, faults = read_evaluations(spans, calls(spans)[0])
    values = dict(counted.select("execution_id", "value").iter_rows())
    return values, sorted([*drops["reason"], *faults["reason"]])


def test_feedback_on_a_trace(traffic: Store) -> None:
    send(traffic, {"trace": TRACES[0], "value": 1}, {"trace": TRACES[2], "value": 0})
    assert judged(traffic, "trace") == ({TRACES[0]: 1.0, TRACES[2]: 0.0}, [])
    assert judged(traffic, "trace", mode="prod") == ({TRACES[0]: 1.0, TRACES[2]: 0.0}, [])
    assert judged(traffic, "session") == ({"morning": 1.0, "evening": 0.0}, [])


def test_feedback_on_a_session(traffic: Store) -> None:
    send(traffic, {"session": "morning", "value": 1})
    assert judged(traffic, "session") == ({"morning": 1.0}, [])
    # the unit is a trace: a session is none of them
    assert judged(traffic, "trace") == ({}, ["unknown_target"])


def test_a_later_feedback_takes_the_place_of_an_earlier_one(traffic: Store) -> None:
    send(traffic, {"trace": TRACES[0], "value": 1})
    send(traffic, {"trace": TRACES[0], "value": 0}, late=2 * DAY)
    assert judged(traffic, "trace") == ({TRACES[0]: 0.0}, ["repeated"])


def test_feedback_on_nothing_is_a_drop(traffic: Store) -> None:
    send(traffic, {"trace": "9" * 32, "value": 1}, {"session": "noon", "value": 1})
    assert judged(traffic, "trace") == ({}, ["unknown_target"] * 2)
    assert judged(traffic, "session") == ({}, ["unknown_target"] * 2)
    send(traffic, {"rollout": "nobody", "value": 1})
    assert judged(traffic, "rollout") == ({}, ["unknown_target"])


def test_feedback_does_not_prolong_what_it_judges(traffic: Store) -> None:
    send(traffic, {"trace": TRACES[0], "value": 1})
    spans, _ = read_spans(traffic, Source(execution="trace"), Selection())
    ends = executions(spans, calls(spans)[0])["end"].unique().to_list()
    assert ends == [NOON + 5]


@pytest.mark.parametrize("target", ["rollout", "trace"])
def test_feedback_on_a_rollout_is_read_with_its_run(
    store: Store, scene: Any, recipe: Recipe, target: str
) -> None:
    rollout = scene.attempt()
    rollout.llm()
    rollout.close()
    insert_otlp(store, scene.request())
    ids = {"rollout": rollout.identity.rollout, "trace": rollout.trace}
    send(store, {target: ids[target], "value": 1})
    spans, drops = read_spans(store, recipe.source, Selection(run="demo"))
    counted, _ = read_evaluations(spans, calls(spans)[0])
    assert counted.select("name", "source", "value").rows() == [("thumbs", "agent", 1.0)]
    assert drops.is_empty()
    [execution] = executions(spans, calls(spans)[0]).to_dicts()
    assert execution["complete"] and execution["closed_by"] == "runner"


def test_feedback_by_hand_has_a_source_of_its_own(traffic: Store) -> None:
    def by_hand(sender: str, late: int, **content: Any) -> None:
        feedback = Feedback.model_validate({"trace": TRACES[0], "name": "thumbs", **content})
        request = to_request([feedback], NOON + late, person="alice")
        resource = request.resource_spans[0].resource
        resource.attributes.add(key="ltrain.sender").value.string_value = sender
        insert_otlp(traffic, request.SerializeToString())

    def counted() -> tuple[list[tuple[str, float]], list[str]]:
        source = Source.model_validate({"execution": "trace"})
        spans, drops = read_spans(traffic, source, Selection())
        found, faults = read_evaluations(spans, calls(spans)[0])
        rows = found.sort("source").select("source", "value").rows()
        return rows, sorted([*drops["reason"], *faults["reason"]])

    send(traffic, {"trace": TRACES[0], "value": 0.5})
    by_hand("local", DAY, value=0)
    by_hand("admin", 2 * DAY, value=1)
    assert counted() == ([("agent", 0.5), ("person", 1.0)], ["repeated"])
    # the scope proves nothing: that of another sender is an agent's
    by_hand("ingest", 3 * DAY, value=-1)
    assert counted() == ([("agent", -1.0), ("person", 1.0)], ["repeated"] * 2)
    by_hand("none", 4 * DAY, withdrawn=True)
    assert counted() == ([("person", 1.0)], ["repeated"] * 3 + ["withdrawn"])
    by_hand("local", 5 * DAY, withdrawn=True)
    by_hand("local", 6 * DAY, comment="a note")
    assert counted() == ([], ["no_value", *["repeated"] * 4, "withdrawn", "withdrawn"])
    by_hand("local", 7 * DAY, value=0.25)
    assert counted()[0] == [("person", 0.25)]


def test_feedback_on_a_call(traffic: Store) -> None:
    send(traffic, {"trace": TRACES[1], "call": f"{2:016x}", "value": 1})
    source = Source.model_validate({"execution": "trace"})
    spans, drops = read_spans(traffic, source, Selection())
    counted, faults = read_evaluations(spans, calls(spans)[0])
    assert counted.select("execution_id", "call_id", "value").rows() == [
        (TRACES[1], f"{2:016x}", 1.0)
    ]
    assert drops.is_empty() and faults.is_empty()


def as_log(trace: str, value: float) -> bytes:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.time_unix_nano, record.event_name = NOON + DAY, "gen_ai.evaluation.result"
    record.trace_id = bytes.fromhex(trace)
    record.attributes.add(key="gen_ai.evaluation.name").value.string_value = "thumbs"
    record.attributes.add(key="gen_ai.evaluation.score.value").value.double_value = value
    return bytes(request.SerializeToString())


def test_a_log_event_counts_like_a_span(traffic: Store) -> None:
    sql = "SELECT name, value, source, trace FROM otel.evaluations ORDER BY trace"
    for trace, value in ((TRACES[0], 1.0), (TRACES[2], 0.0)):
        insert_otlp(traffic, as_log(trace, value), LOGS)
    in_logs, rows_of_logs = judged(traffic, "trace"), traffic.query(sql).rows()
    send(traffic, {"trace": TRACES[0], "value": 1}, {"trace": TRACES[2], "value": 0}, late=2 * DAY)
    values, drops = judged(traffic, "trace")
    assert in_logs == (values, []) and drops == ["repeated", "repeated"]
    rows = pl.DataFrame(traffic.query(sql)).unique(maintain_order=True).rows()
    assert rows_of_logs == rows
