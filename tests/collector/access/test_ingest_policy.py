"""The ingest policy: identities, tokens and rewards in every form that readers accept."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ltrain_collector import schema
from ltrain_collector.access.grants import Grant, Role
from ltrain_collector.access.ingest_policy import IngestPolicy, Shape
from ltrain_collector.signals import encode_traces
from ltrain_collector.store import Store
from ltrain_instrument import attributes

IDENTITY = {
    "ltrain.run.id": "run",
    "ltrain.rollout.id": "mine",
    "ltrain.attempt.id": "1",
    "ltrain.task.id": "t1",
}
BOUND = Grant(Role.INGEST, "mine.1", IDENTITY)
REWARDING = Grant(Role.INGEST, "mine.1", IDENTITY, rewards=True)
NOON = 1_790_000_000_000_000_000


def find_violation(
    grant: Grant | None, resource: Resource, scope: InstrumentationScope, record: Any
) -> str:
    policy = IngestPolicy(grant)
    return (
        policy.resource_violation(resource)
        or policy.scope_violation(scope)
        or policy.record_violation(record)
    )


def attach_identity(grant: Grant, record: Any) -> None:
    policy = IngestPolicy(grant)
    assert policy.record_violation(record) == ""
    policy.attach_identity(record)


def put(owner: Any, key: str, value: object = "x") -> None:
    one = owner.attributes.add(key=key).value
    if isinstance(value, bool):
        one.bool_value = value
    elif isinstance(value, int):
        one.int_value = value
    elif isinstance(value, float):
        one.double_value = value
    else:
        one.string_value = str(value)


def put_event(span: Any, name: str, key: str = "k") -> None:
    event = span.events.add(name=name)
    put(event, key)


def span_of(*attributes: tuple[str, object], name: str = "think") -> Span:
    span = Span(name=name, trace_id=b"\1" * 16, span_id=b"\2" * 8, start_time_unix_nano=NOON)
    for key, value in attributes:
        put(span, key, value)
    return span


@pytest.mark.parametrize(
    "attribute",
    [
        ("gen_ai.operation.name", "chat"),
        ("ltrain.rollout.id", "mine"),
        ("ltrain.rollout.id", ""),
        ("ltrain.attempt.id", 1),
        ("ltrain.attempt.id", "1"),
        ("agentlightning.rollout_id", "mine"),
        ("ltrain.task.id", "t1"),
        ("ltrain.prompt.greeting", 3),
        ("ltrain.truncated", True),
        ("ltrain.redacted", True),
        ("ltrain.cut", "{}"),
        ("ltrain.rollout.spans", 3),
        ("session.id", "anything"),
        ("annotations", "a plain attribute"),
    ],
)
def test_an_agents_own_spans_are_stored(attribute: tuple[str, object]) -> None:
    assert (
        find_violation(BOUND, Resource(), InstrumentationScope(name="mine"), span_of(attribute))
        == ""
    )


FORGED = [
    ("ltrain.rollout.id", "other"),
    ("ltrain.rollout.id", " mine"),
    ("ltrain.attempt.id", 2),
    ("ltrain.attempt.id", "01"),
    ("ltrain.run.id", "other"),
    ("ltrain.task.id", "t2"),
    ("ltrain.mode", "val"),
    ("ltrain.wave", 9),
    ("ltrain.sample.index", 9),
    ("ltrain.domain", "easy"),
    ("agentlightning.rollout_id", "other"),
    ("agentlightning.attempt_id", "2"),
    ("ltrain.policy.name", "default"),
    ("ltrain.policy.version", 3),
    ("ltrain.prompt_token_ids", "[1]"),
    ("ltrain.promptly", 1),
    ("ltrain.response_token_ids", "[1]"),
    ("ltrain.response_logprobs", "AAAA"),
    ("ltrain.prompt_token_count", 1),
    ("ltrain.response_token_count", 1),
    ("prompt_token_ids", "[1]"),
    ("response_token_ids", "[1]"),
    ("logprobs.content", "[]"),
    ("ltrain.asked.temperature", 0.0),
    ("ltrain.constrained", True),
    ("ltrain.delivered", True),
    ("ltrain.rollout.outcome", "ok"),
    ("ltrain.rollout.reason", "good"),
    ("ltrain.rollout.llm_calls", 1),
    ("ltrain.lease.until", 1),
    ("ltrain.tasks.digest", "x"),
    ("ltrain.reward.digest", "x"),
    ("ltrain.dataset.id", "x"),
    ("ltrain.recipe.digest", "x"),
    ("ltrain.train.loss", 0.0),
    ("ltrain.anything.new", 1),
]

REWARDS = [
    ("gen_ai.evaluation.score.value", 1.0),
    ("gen_ai.evaluation.name", "reward"),
    ("ltrain.reward.scope", "rollout"),
    ("annotations.0.annotation.score", 1.0),
    ("evaluations.0.evaluation.score", 1.0),
    ("annotations.3.evaluation.name", "reward"),
    ("trace.annotations.0.annotation.score", 1.0),
    ("session.evaluations.12.evaluation.label", "good"),
    ("agentlightning.reward.0.value", 1.0),
]


def on_span(span: Span, resource: Resource, scope: InstrumentationScope, one: Any) -> None:
    put(span, *one)


def on_resource(span: Span, resource: Resource, scope: InstrumentationScope, one: Any) -> None:
    put(resource, *one)


def on_scope(span: Span, resource: Resource, scope: InstrumentationScope, one: Any) -> None:
    put(scope, *one)


def on_event(span: Span, resource: Resource, scope: InstrumentationScope, one: Any) -> None:
    put(span.events.add(name="note"), *one)


def behind_its_own(span: Span, resource: Resource, scope: InstrumentationScope, one: Any) -> None:
    """ClickHouse reads the first of two attributes with the same name; others can read the last."""
    put(span, one[0], IDENTITY.get(one[0], ""))
    put(span, *one)


PLACES = [on_span, on_resource, on_scope, on_event, behind_its_own]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("one", [*FORGED, *REWARDS], ids=str)
def test_another_identity_a_token_or_a_reward_is_refused(
    place: Callable[..., None], one: tuple[str, object]
) -> None:
    span, resource, scope = span_of(), Resource(), InstrumentationScope(name="mine")
    place(span, resource, scope, one)
    assert find_violation(BOUND, resource, scope, span) != ""
    assert find_violation(None, resource, scope, span) == ""
    assert find_violation(Grant(Role.INGEST), resource, scope, span) == ""
    assert find_violation(Grant(Role.ADMIN), resource, scope, span) == ""


@pytest.mark.parametrize("one", REWARDS, ids=str)
def test_a_flag_allows_the_agents_own_rewards(one: tuple[str, object]) -> None:
    scope = InstrumentationScope(name="ltrain.instrument")
    span = span_of(one, name="gen_ai.evaluation.result")
    assert find_violation(REWARDING, Resource(), scope, span) == ""
    runner = InstrumentationScope(name="ltrain.runner")
    assert "ltrain.runner" in find_violation(REWARDING, Resource(), runner, span)
    put(span, "ltrain.rollout.id", "other")
    assert "not bound to" in find_violation(REWARDING, Resource(), scope, span)


@pytest.mark.parametrize(
    "scope",
    ["ltrain.gateway", "ltrain.capture", "ltrain.runner", "ltrain.learner", "ltrain.runner "],
)
def test_the_scopes_of_others_are_refused(scope: str) -> None:
    for record in (span_of(), LogRecord(), Metric(name="m")):
        assert scope in find_violation(BOUND, Resource(), InstrumentationScope(name=scope), record)


@pytest.mark.parametrize(
    "name",
    [
        attributes.SPAN_ROLLOUT,
        attributes.SPAN_DISPATCH,
        attributes.SPAN_STEP,
        attributes.SPAN_PUBLISH,
        attributes.SPAN_EVALUATION,
        "agentlightning.annotation",
    ],
)
def test_the_names_of_others_are_refused(name: str) -> None:
    event = span_of()
    put_event(event, name)
    by_attribute = LogRecord()
    put(by_attribute, "event.name", name)
    by_body = LogRecord()
    by_body.body.string_value = name
    named = (span_of(name=name), event, LogRecord(event_name=name), by_attribute, by_body)
    for record in (*named, Metric(name=name)):
        assert find_violation(BOUND, Resource(), InstrumentationScope(), record) != ""


@pytest.mark.parametrize("kind", ["gauge", "sum", "histogram", "exponential_histogram", "summary"])
def test_the_points_of_a_metric_are_looked_at(kind: str) -> None:
    metric = Metric(name="m")
    getattr(metric, kind).data_points.add()
    assert find_violation(BOUND, Resource(), InstrumentationScope(), metric) == ""
    put(getattr(metric, kind).data_points.add(), "ltrain.rollout.id", "other")
    assert "not bound to" in find_violation(BOUND, Resource(), InstrumentationScope(), metric)


def test_links_do_not_count() -> None:
    span = span_of()
    link = span.links.add(trace_id=b"\7" * 16, span_id=b"\7" * 8)
    put(link, "ltrain.rollout.id", "other")
    assert find_violation(BOUND, Resource(), InstrumentationScope(), span) == ""


def test_an_attempt_that_the_key_leaves_open_may_be_any() -> None:
    grant = Grant(Role.INGEST, "mine", {"ltrain.rollout.id": "mine"})
    span = span_of(("ltrain.attempt.id", 7))
    assert find_violation(grant, Resource(), InstrumentationScope(), span) == ""
    attach_identity(grant, span)
    assert {one.key for one in span.attributes} == {"ltrain.attempt.id", "ltrain.rollout.id"}


@pytest.mark.parametrize(
    "pairs",
    [
        [("ltrain.rollout.id", "mine"), ("ltrain.attempt.id", 1)],
        [("ltrain.rollout.id", ""), ("ltrain.rollout.id", "mine")],
        [("ltrain.rollout.id", "mine"), ("ltrain.rollout.id", "")],
        [("agentlightning.rollout_id", "mine"), ("ltrain.task.id", "")],
    ],
)
def test_a_record_has_each_identity_with_one_value(pairs: list[tuple[str, object]]) -> None:
    span = span_of(*pairs, ("k", "v"))
    attach_identity(BOUND, span)
    carried = [
        (one.key, one.value.string_value or str(one.value.int_value)) for one in span.attributes
    ]
    assert sorted(carried) == sorted([*IDENTITY.items(), ("k", "v")])


@pytest.mark.parametrize("field", ["attributes", "events", "links"])
def test_a_record_that_is_too_large_is_named(field: str) -> None:
    policy = IngestPolicy(None, Shape(**{field: 3}))
    span = Span()
    for _ in range(3):
        getattr(span, field).add()
    assert policy.record_violation(span) == ""
    getattr(span, field).add()
    assert policy.record_violation(span) == f"a record has 4 {field}, and its sender may send 3"
    assert IngestPolicy(BOUND).record_violation(span) == ""


def test_a_run_key_sends_any_rollout_of_its_run() -> None:
    grant = Grant(Role.INGEST, "run", {"ltrain.run.id": "run", "ltrain.mode": "train"})
    own = [("ltrain.rollout.id", "a"), ("ltrain.attempt.id", 2), ("ltrain.task.id", "t")]
    span = span_of(*own, ("ltrain.wave", 1), ("ltrain.sample.index", 0), ("ltrain.domain", "d"))
    assert find_violation(grant, Resource(), InstrumentationScope(), span) == ""
    attach_identity(grant, span)
    carried = {one.key: one.value.string_value for one in span.attributes}
    assert (carried["ltrain.run.id"], carried["ltrain.mode"]) == ("run", "train")
    assert carried["ltrain.rollout.id"] == "a"
    for forged in (("ltrain.run.id", "other"), ("ltrain.mode", "val"), ("prompt_token_ids", "[1]")):
        assert (
            find_violation(grant, Resource(), InstrumentationScope(), span_of(*own, forged)) != ""
        )
    runner = InstrumentationScope(name="ltrain.runner")
    assert find_violation(grant, Resource(), runner, span_of(*own)) != ""
    assert find_violation(grant, Resource(), InstrumentationScope(), span_of(REWARDS[0])) != ""


def test_a_span_in_anothers_trace_is_still_of_its_own_rollout(folder: Store) -> None:
    """A span without ids would belong to its trace's rollout: it gets the ids of the key."""
    theirs, mine = ExportTraceServiceRequest(), ExportTraceServiceRequest()
    runner = theirs.resource_spans.add().scope_spans.add()
    runner.spans.append(span_of(("ltrain.rollout.id", "theirs"), ("ltrain.attempt.id", "1")))
    agent = mine.resource_spans.add().scope_spans.add()
    bare = span_of(("k", "v"), ("ltrain.rollout.id", ""))
    bare.span_id = b"\3" * 8
    agent.spans.append(bare)
    for request, grant in ((theirs, None), (mine, BOUND)):
        rows = encode_traces(request, IngestPolicy(grant))
        assert (rows.count, rows.rejected) == (1, 0)
        [(table, block)] = rows.blocks.items()
        folder._backend.insert_raw(schema.insert_target(table), "RowBinary", block.payload)
    sql = "SELECT RunId, RolloutId, Attempt, TaskId, SpanAttributes['k'] FROM otel.spans ORDER BY 2"
    assert folder.query(sql).rows() == [
        ("run", "mine", "1", "t1", "v"),
        ("", "theirs", "1", "", ""),
    ]
