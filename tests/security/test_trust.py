"""The store records the sender of a record by its key, and readers trust rows by sender."""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import orjson
import polars as pl
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests import http_requests
from tests.otlp import emptied, insert_otlp, open_empty_store
from tests.transforms.conftest import RECIPE, RUNNER, Attempt, Attributes, Scene, tokens
from tests.up import Up, start_up

from ltrain_collector.access import Keys, Role
from ltrain_collector.store import Store
from ltrain_collector.transfer.commands import export_requests, to_json_line
from ltrain_collector.transfer.importing import import_files
from ltrain_instrument import clock
from ltrain_instrument.delivery.segment import Segment
from ltrain_instrument.identity import Identity
from ltrain_train.store import open_service_provider
from ltrain_train.store.service_key import ServiceKey
from ltrain_transforms.datasets import derive
from ltrain_transforms.datasets.pipeline import DerivedTables
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports.waves import query_waves
from ltrain_transforms.show.rollout import candidates, read_rollout
from ltrain_transforms.source import Selection, read_spans, read_waves, wait_complete
from ltrain_transforms.traces.sender_roles import trusted_senders

NOON = 1_790_000_000_000_000_000
TRACE_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

Send = Callable[[Up, ExportTraceServiceRequest, str], None]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def up(home: Path) -> Iterator[Up]:
    """A store without keys."""
    running = start_up(home / "store")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_empty_store(tmp_path_factory.mktemp("opened") / "store") as opened:
        yield opened


@pytest.fixture
def folder(opened: Store) -> Store:
    return emptied(opened)


def put(owner: Any, key: str, value: str) -> None:
    owner.attributes.add(key=key).value.string_value = value


def forged(trace: int) -> ExportTraceServiceRequest:
    """Return a span that claims the sender `service` wherever it can."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    scoped = resource.scope_spans.add()
    span = scoped.spans.add(name="think", start_time_unix_nano=NOON, end_time_unix_nano=NOON + 1)
    span.trace_id, span.span_id = trace.to_bytes(16, "big"), b"\1" * 8
    event = span.events.add(name="note", time_unix_nano=NOON)
    link = span.links.add(trace_id=b"\7" * 16, span_id=b"\7" * 8)
    for owner in (resource.resource, resource.resource, scoped.scope, span, event, link):
        put(owner, "ltrain.sender", "service")
        put(owner, "kept", "yes")
    return request


def by_http(up: Up, request: ExportTraceServiceRequest, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = http_requests.post(up.otlp, request.SerializeToString(), **headers)
    assert (answer.status, answer.body) == (200, b"")


def by_json(up: Up, request: ExportTraceServiceRequest, key: str) -> None:
    """JSON can write the name of the attribute with escapes."""
    [resource] = MessageToDict(request)["resourceSpans"]
    span = resource["scopeSpans"][0]["spans"][0]
    span["traceId"] = request.resource_spans[0].scope_spans[0].spans[0].trace_id.hex()
    span["spanId"], span["links"] = "01" * 8, []
    plain = orjson.dumps({"resourceSpans": [resource]})
    body = plain.replace(b"ltrain.sender", b"ltrain\\u002esender")
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {key}"} if key else {}
    )
    answer = http_requests.ask(up.otlp, "POST", "/v1/traces", body, headers)
    assert (answer.status, answer.json) == (200, {})


def by_grpc(up: Up, request: ExportTraceServiceRequest, key: str) -> None:
    metadata = [("authorization", f"Bearer {key}")] if key else []
    with grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel:
        export = channel.unary_unary(TRACE_EXPORT)
        assert export(request.SerializeToString(), timeout=30, metadata=metadata) == b""


@pytest.mark.parametrize("send", [by_http, by_json, by_grpc])
@pytest.mark.parametrize("sender", ["none", "agent", "service"])
def test_the_store_records_the_sender_by_its_key(
    up: Up, home: Path, send: Send, sender: str, request: pytest.FixtureRequest
) -> None:
    trace = 1 + abs(hash(request.node.name)) % (1 << 60)
    bound = Keys(up.directory).sign_bound(Identity(rollout="ro"), 600)
    service = str(ServiceKey(home)()).removeprefix("Bearer ")
    send(up, forged(trace), {"none": "", "agent": bound, "service": service}[sender])
    sql = (
        "SELECT ResourceAttributes['ltrain.sender'] AS resource, toString(Sender) AS column, "
        "mapContains(SpanAttributes, 'ltrain.sender') AS span, SpanAttributes['kept'] AS kept, "
        "arrayExists(one -> mapContains(one, 'ltrain.sender'), `Events.Attributes`) AS event, "
        "arrayExists(one -> mapContains(one, 'ltrain.sender'), `Links.Attributes`) AS link "
        "FROM otel.spans WHERE TraceId = {trace:String}"
    )
    with Store.open(up.dsn) as store:
        [row] = store.query(sql, {"trace": f"{trace:032x}"}).rows()
    assert row == (sender, sender, 0, "yes", 0, 0)


def test_made_keys_are_senders_of_their_role(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    made = {role.value: keys.make_key(role)[0] for role in Role if role is not Role.QUERY}
    query, _ = keys.make_key(Role.QUERY)
    running = start_up(tmp_path / "store")
    try:
        for number, key in enumerate(made.values(), 1):
            by_http(running, forged(number), key)
            logs = ExportLogsServiceRequest()
            owner = logs.resource_logs.add()
            put(owner.resource, "ltrain.sender", "local")
            owner.scope_logs.add().log_records.add(time_unix_nano=NOON + number)
            body, headers = logs.SerializeToString(), {"Authorization": f"Bearer {key}"}
            assert http_requests.post(running.otlp, body, "/v1/logs", **headers).status == 200
        with Store.open(f"http://any:{query}@127.0.0.1:{running.sql}") as store:
            for view, time in (("spans", "TraceId"), ("logs", "Timestamp")):
                sql = f"SELECT toString(Sender) AS s FROM otel.{view} ORDER BY {time}"
                assert store.query(sql)["s"].to_list() == list(made)
    finally:
        assert running.stop() == 0


MEASURED = 987654321.5


def measures(name: str, service: str) -> bytes:
    request = ExportMetricsServiceRequest()
    owner = request.resource_metrics.add()
    put(owner.resource, "service.name", service)
    metrics = owner.scope_metrics.add().metrics
    metrics.add(name=name).gauge.data_points.add(time_unix_nano=NOON, as_double=MEASURED)
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    ("name", "service"),
    [("ltrain_collector_requests_total", "agent"), ("anything", "ltrain-collector")],
)
def test_only_the_collector_writes_its_own_metrics(
    up: Up, home: Path, name: str, service: str
) -> None:
    bound = Keys(up.directory).sign_bound(Identity(rollout="ro"), 600)
    for key in ("", f"Bearer {bound}", str(ServiceKey(home)())):
        headers = {"Authorization": key} if key else {}
        answer = http_requests.post(up.otlp, measures(name, service), "/v1/metrics", **headers)
        partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
        assert (answer.status, partial.rejected_data_points) == (200, 1)
        assert "the collector's own" in partial.error_message
    fine = http_requests.post(up.otlp, measures("fine", "agent"), "/v1/metrics")
    assert (fine.status, fine.body) == (200, b"")
    page = http_requests.ask(up.otlp, "GET", "/metrics").text
    [rejected] = [one for one in page.splitlines() if "rejected_total{" in one and "metrics" in one]
    assert float(rejected.split()[-1]) >= 3
    with Store.open(up.dsn) as store:
        sql = (
            "SELECT count() AS n FROM otel.metrics_gauge "
            "WHERE Value = {value:Float64} AND MetricName != 'fine'"
        )
        assert store.query(sql, {"value": MEASURED})["n"].item() == 0


def test_what_files_say_of_their_sender_counts_only_where_they_are_trusted(
    folder: Store, tmp_path: Path
) -> None:
    insert_otlp(folder, forged(1).SerializeToString())
    exported = tmp_path / "export.jsonl"
    exported.write_bytes(b"".join(map(to_json_line, export_requests(folder, "true", {}))))
    for trusted, sender in ((False, "import"), (True, "service")):
        folder.command("TRUNCATE TABLE otel.otel_traces")
        import_files(folder, [exported], lambda progress: None, trusted)
        assert folder.query("SELECT toString(Sender) FROM otel.spans").rows() == [(sender,)]


def sent(scene: Scene, sender: str, where: Callable[[Any], bool] = lambda span: True) -> bytes:
    """Return the scene as one request; spans for which `where` holds are of `sender`.

    The others are of a service.
    """
    request = ExportTraceServiceRequest.FromString(scene.request())
    for resource in request.resource_spans:
        span = resource.scope_spans[0].spans[0]
        put(resource.resource, "ltrain.sender", sender if where(span) else "service")
    return bytes(request.SerializeToString())


def whole(scene: Scene, reward: float = 1.0, missing: int = 0, **who: Any) -> Attempt:
    """Add an attempt with one trained call."""
    attempt = scene.attempt(**who)
    attempt.dispatch()
    attempt.llm()
    attempt.evaluate(reward)
    return attempt.close(missing=missing)


def beside(scene: Scene) -> None:
    """Add an attempt that the first one of its task is compared with."""
    whole(scene, 0.25, sample=7)


def trained(found: DerivedTables, attempt: Attempt) -> list[list[int]]:
    """Return the sampled tokens of each of an attempt's rows."""
    rows = found.tables["samples"].filter(execution_id=attempt.execution)
    return sorted(rows["response_ids"].to_list())


def built(store: Store, text: str = "") -> DerivedTables:
    """Return all tables of a recipe with `text` before its sections."""
    recipe = recipe_of(text)
    spans, _ = read_spans(store, recipe.source, Selection())
    return derive(spans, recipe)


def recipe_of(text: str) -> Recipe:
    return Recipe.model_validate(tomllib.loads(RECIPE.strip()) | tomllib.loads(text))


def reasons(found: DerivedTables, stage: str) -> list[str]:
    return sorted(found.tables["drops"].filter(stage=stage)["reason"])


def is_span(*names: str) -> Callable[[Any], bool]:
    return lambda span: span.name in names


OTHERS = ["none", "ingest", "agent", "import"]


@pytest.mark.parametrize("sender", OTHERS)
def test_a_forged_ending_removes_no_rollout(folder: Store, sender: str) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    insert_otlp(folder, sent(scene, "service"))
    lie = Scene(attempts=[Attempt(attempt.identity, clock=attempt.clock, number=500)])
    span_attributes: Attributes = {
        "ltrain.rollout.outcome": "infra",
        "ltrain.rollout.spans": 10_000,
    }
    lie.attempts[0].emit("ltrain.rollout", RUNNER, span_attributes)
    lie.attempts[0].evaluate(0.0)
    insert_otlp(folder, sent(lie, sender))
    found = built(folder)
    [one] = found.tables["executions"].filter(execution_id=attempt.execution).to_dicts()
    assert (one["outcome"], one["complete"], one["superseded"]) == ("ok", True, False)
    assert dict(found.outcomes.iter_rows())[attempt.execution] == 1.0
    assert reasons(found, "rewards") == ["unheard"]
    [drop] = found.tables["drops"].filter(reason="untrusted").to_dicts()
    assert f"sender '{sender}'" in drop["detail"]
    assert "[source] trust" in drop["detail"]
    believed = built(folder, f'source = {{ run = "demo", trust = ["{sender}"] }}')
    assert sorted(believed.tables["executions"]["outcome"]) == ["infra", "ok"]


def test_a_row_without_a_sender_is_trusted_where_the_recipe_says_so(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    insert_otlp(folder, sent(scene, "service"))
    folder.command("CREATE TABLE otel.old AS otel.otel_traces")
    nobody = "mapFilter((key, value) -> key != 'ltrain.sender', ResourceAttributes)"
    columns = f"* REPLACE ({nobody} AS ResourceAttributes)"
    folder.command(f"INSERT INTO otel.old SELECT {columns} FROM otel.otel_traces")
    folder.command("TRUNCATE TABLE otel.otel_traces")
    folder.command("INSERT INTO otel.otel_traces SELECT * FROM otel.old")
    assert trained(built(folder), attempt) == []
    believed = built(folder, 'source = { run = "demo", trust = [""] }')
    assert trained(believed, attempt) == [[4, 5]]


def test_readers_of_the_store_take_endings_from_runners_only(folder: Store) -> None:
    scene = Scene()
    attempt = scene.attempt()
    attempt.dispatch()
    attempt.llm()
    attempt.close()
    forged_ending = is_span("ltrain.rollout")
    insert_otlp(folder, sent(scene, "none", forged_ending))
    rollout = attempt.rollout
    assert wait_complete(folder, [rollout], 0) == {rollout}
    assert folder.query("SELECT * FROM otel.rollouts").is_empty()
    true = Scene()
    whole(true, sample=1)
    insert_otlp(folder, sent(true, "service"))
    assert folder.query("SELECT outcome FROM otel.rollouts").rows() == [("ok",)]
    assert folder.query("SELECT source FROM otel.evaluations").rows() == [("runner",)]


def test_a_forged_attempt_takes_the_place_of_none(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    insert_otlp(folder, sent(scene, "service"))
    lie = Scene()
    whole(lie, 0.0, attempt=9)
    insert_otlp(folder, sent(lie, "none"))
    found = built(folder)
    dataset = found.tables["executions"].filter(~pl.col("superseded"))
    assert set(dataset["execution_id"]) == {one.execution for one in scene.attempts}
    assert trained(found, attempt) == [[4, 5]]
    assert wait_complete(folder, [attempt.rollout], 0) == set()


INVENTED = {
    "gen_ai.operation.name": "chat",
    "ltrain.policy.name": "sql",
    "ltrain.policy.version": 0,
    "gen_ai.request.temperature": 1.0,
    "gen_ai.output.messages": '[{"role":"assistant","parts":[]}]',
    **tokens((6, 6), (666, 666)),
}


@pytest.mark.parametrize("scope", ["ltrain.capture", "ltrain.gateway", "ltrain.gateway "])
def test_invented_tokens_are_not_trained(folder: Store, scope: str) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    insert_otlp(folder, sent(scene, "service"))
    lie = Scene(attempts=[Attempt(attempt.identity, clock=attempt.clock, number=500)])
    lie.attempts[0].emit("chat sql", scope, {**INVENTED, "gen_ai.agent.name": "write"})
    insert_otlp(folder, sent(lie, "agent"))
    found = built(folder)
    assert trained(found, attempt) == [[4, 5]]
    named = scope != "ltrain.gateway "
    assert reasons(found, "rows") == (["untrusted_tokens"] if named else ["no_tokens"])
    trusting = 'policy = [{ name = "sql", agents = ["write"], token_source = "capture" }]'
    invented = [[666, 666]] if named else []
    assert trained(built(folder, trusting), attempt) == [[4, 5], *invented]


def test_no_agent_puts_its_tokens_into_the_gateways_call(folder: Store) -> None:
    """A capture's span below the SDK's, and a copy with the gateway's own ids."""
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    [gateway] = [span for span in attempt.spans if span.scope == "ltrain.gateway"]
    lie = Scene(attempts=[Attempt(attempt.identity, clock=attempt.clock, number=500)])
    marks = {"ltrain.constrained": True, "ltrain.delivered": False, "ltrain.redacted": True}
    span_attributes = {**INVENTED, **marks, "gen_ai.request.temperature": 0.0}
    place: dict[str, Any] = {"parent": gateway.parent, "end": gateway.end}
    lie.attempts[0].emit(
        "chat sql", "ltrain.capture", span_attributes, start=gateway.start, **place
    )
    copied = {**place, "span": gateway.span, "start": gateway.start - 1}
    lie.attempts[0].emit("chat sql", "ltrain.gateway", span_attributes, **copied)
    insert_otlp(folder, sent(lie, "none"))
    insert_otlp(folder, sent(scene, "service"))
    found = built(folder)
    assert trained(found, attempt) == [[4, 5]]
    calls = found.tables["calls"].filter(execution_id=attempt.execution, kind="llm")
    assert calls["token_source"].to_list() == ["gateway"]


@pytest.mark.parametrize("mark", ["ltrain.redacted", "ltrain.truncated"])
def test_an_agents_mark_removes_no_call_that_the_gateway_recorded(folder: Store, mark: str) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    for span in attempt.spans:
        if span.process == "worker":
            span.attributes[mark] = True
    insert_otlp(folder, sent(scene, "agent", of_worker(attempt)))
    assert trained(built(folder), attempt) == [[4, 5]]


def of_worker(attempt: Attempt) -> Callable[[Any], bool]:
    worker = {span.span for span in attempt.spans if span.process == "worker"}
    return lambda span: span.span_id.hex() in worker


def test_spans_that_an_agent_withholds_count_as_its_failure(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene, 1.0, missing=3)
    whole(scene, 1.0, sample=1)
    insert_otlp(folder, sent(scene, "agent", of_worker(attempt)))
    found = built(folder)
    held = found.tables["executions"].filter("withheld")
    assert held.select("execution_id", "complete", "spans_expected", "spans_seen").rows() == [
        (attempt.execution, True, 9, 6)
    ]
    worth = dict(found.outcomes.iter_rows())
    assert (worth[attempt.execution], sorted(worth.values())) == (0.0, [0.0, 1.0])
    assert reasons(found, "rewards") == ["withheld"]
    dropped = built(folder, 'filter = { failed = "drop" }')
    assert reasons(dropped, "executions") == ["withheld"]
    dataset = built(folder, 'filter = { allow = ["incomplete"] }')
    assert dataset.outcomes["reward"].to_list() == [1.0, 1.0]


def test_spans_that_the_gateway_lost_are_no_failure_of_the_agent(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    gateway = [span for span in attempt.spans if span.process == "gateway"]
    attempt.spans.remove(gateway[0])
    insert_otlp(folder, sent(scene, "agent", of_worker(attempt)))
    found = built(folder)
    assert reasons(found, "executions") == ["incomplete"]
    assert not found.tables["executions"]["withheld"].any()


def test_an_agent_names_no_other_task_for_its_attempt(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    early = Scene(attempts=[Attempt(attempt.identity, clock=attempt.clock - 10**12, number=500)])
    early.attempts[0].emit("think", "mine", {"ltrain.task.id": "easy", "ltrain.wave": 7})
    insert_otlp(folder, sent(scene, "service"))
    insert_otlp(folder, sent(early, "none"))
    attempts = built(folder).tables["executions"]
    [one] = attempts.filter(execution_id=attempt.execution).to_dicts()
    assert (one["task_id"], one["wave"]) == ("t1", 0)


@pytest.mark.parametrize("extra", [{}, {"ltrain.mode": "prod"}], ids=["bare", "prod"])
def test_a_call_without_the_attempts_key_is_context_only(
    folder: Store, extra: dict[str, str]
) -> None:
    scene = Scene()
    attempt = scene.attempt()
    attempt.dispatch()
    attempt.llm()
    span_attributes = {
        **INVENTED,
        **extra,
        "gen_ai.request.temperature": 0.01,
        "gen_ai.agent.name": "write",
    }
    attempt.emit("chat sql", "ltrain.gateway", span_attributes, named=False, process="gateway")
    attempt.evaluate(1.0)
    attempt.close()
    beside(scene)
    insert_otlp(folder, sent(scene, "service"))
    found = built(folder)
    calls = found.tables["calls"].filter(execution_id=attempt.execution, kind="llm")
    assert calls["token_source"].to_list() == ["gateway", "traffic"]
    assert trained(found, attempt) == [[4, 5]]
    assert reasons(found, "rows") == ["without_key"]


def test_an_evaluation_in_a_log_is_the_runners_only_from_its_sender(folder: Store) -> None:
    from ltrain_collector.signals import LOGS

    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    insert_otlp(folder, sent(scene, "service"))
    for sender, value in (("none", 0.0), ("service", 0.5)):
        logs = ExportLogsServiceRequest()
        owner = logs.resource_logs.add()
        put(owner.resource, "ltrain.sender", sender)
        scoped = owner.scope_logs.add()
        scoped.scope.name = RUNNER
        record = scoped.log_records.add(
            time_unix_nano=attempt.clock + 10**9, event_name="gen_ai.evaluation.result"
        )
        for key, text in (
            ("ltrain.rollout.id", attempt.rollout),
            ("ltrain.attempt.id", "1"),
            ("gen_ai.evaluation.name", "reward"),
            ("gen_ai.evaluation.score.value", str(value)),
            ("ltrain.reward.scope", "rollout"),
        ):
            put(record, key, text)
        insert_otlp(folder, logs.SerializeToString(), LOGS)
        worth = dict(built(folder).outcomes.iter_rows())
        assert worth[attempt.execution] == (1.0 if sender == "none" else 0.5)


def test_an_ltrain_process_sends_with_its_own_key(
    up: Up, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forwards nothing from the folder that agents share."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{up.otlp}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20lt_stale")
    left = Segment.create(home / "spool")
    left.append(forged(77).SerializeToString())
    left.release()
    provider = open_service_provider("ltrain-runner", home)
    provider.get_tracer("ltrain.runner").start_span("mine").end()
    assert provider.force_flush(60_000)
    provider.shutdown()
    with Store.open(up.dsn) as store:
        sql = "SELECT toString(Sender) AS s FROM otel.spans WHERE SpanName = 'mine'"
        assert store.query(sql)["s"].to_list() == ["service"]
        there = f"SELECT count() AS n FROM otel.spans WHERE TraceId = '{77:032x}'"
        assert store.query(there)["n"].item() == 0
    assert left.path.exists()


def test_a_service_key_is_signed_anew_before_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LTRAIN_STORE", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    key = ServiceKey(tmp_path)
    assert key() is None  # no store is here yet
    (tmp_path / "store").mkdir()
    first = key()
    assert first is not None
    later = clock.time.monotonic() + 13 * 3600
    monkeypatch.setattr(clock.time, "monotonic", lambda: later)
    assert key() not in (None, first)
    monkeypatch.setenv("LTRAIN_STORE", "http://store.example:8123")
    assert ServiceKey(tmp_path)() is None
    monkeypatch.setenv("LTRAIN_STORE_SECRET", "0123456789abcdef0123456789abcdef")
    assert ServiceKey(tmp_path)() is not None


def of_gateway(attempt: Attempt) -> Any:
    [span] = [span for span in attempt.spans if span.scope == "ltrain.gateway"]
    return span


def lying(attempt: Attempt) -> Attempt:
    """Return the same attempt, for spans that its agent sends directly."""
    return Scene(attempts=[Attempt(attempt.identity, clock=attempt.clock, number=500)]).attempts[0]


def test_an_agents_span_with_the_gateways_id_in_another_trace_takes_no_place(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    gateway, lie = of_gateway(attempt), lying(attempt)
    lie.emit("chat sql", "mine", {}, span=gateway.span, trace="7" * 32, start=gateway.start - 9)
    insert_otlp(folder, sent(scene, "service"))
    insert_otlp(folder, sent(Scene(attempts=[lie]), "agent"))
    found = built(folder)
    assert trained(found, attempt) == [[4, 5]]
    [drop] = found.tables["drops"].filter(reason="duplicate_span")["id"]
    assert drop.startswith(gateway.span)


def test_an_agent_closes_no_cycle_around_the_gateways_span(folder: Store) -> None:
    """Its own span is below the gateway's and above it."""
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    gateway, lie = of_gateway(attempt), lying(attempt)
    lie.emit("loop", "mine", {}, span="ab" * 8, parent=gateway.span)
    gateway.parent = "ab" * 8
    insert_otlp(folder, sent(scene, "service"))
    insert_otlp(folder, sent(Scene(attempts=[lie]), "agent"))
    # no span names the node of a gateway's call that lies in none, so all calls are trained
    found = built(folder, 'policy = [{ name = "sql" }]')
    assert trained(found, attempt) == [[4, 5]]
    [drop] = found.tables["drops"].filter(reason="cyclic_parents")["id"]
    assert drop.startswith("ab" * 8)


def test_a_span_around_the_gateways_calls_hides_none(folder: Store) -> None:
    scene = Scene()
    attempt = scene.attempt()
    attempt.dispatch()
    for answer in ((4, 5), (6, 7), (8, 9)):
        attempt.llm(response=answer)
    attempt.evaluate(1.0)
    attempt.close()
    beside(scene)
    chains = [span for span in attempt.spans if span.name == "write"]
    chat: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "write"}
    lie = lying(attempt)
    around = lie.emit("chat", "mine", chat, start=chains[0].start - 1, end=chains[-1].end + 1)
    for chain in chains:
        chain.parent, chain.attributes = around, {**attempt.identity.attributes()}
    insert_otlp(folder, sent(scene, "agent", of_worker(attempt)))
    insert_otlp(folder, sent(Scene(attempts=[lie]), "agent"))
    found = built(folder)
    assert trained(found, attempt) == [[4, 5], [6, 7], [8, 9]]
    calls = found.tables["calls"].filter(execution_id=attempt.execution, kind="llm")
    assert calls["source_spans"].list.len().to_list() == [3, 3, 3]
    assert calls["capture_mismatch"].to_list() == [None] * 3


def test_a_shared_response_id_hides_no_call_of_the_gateway(folder: Store) -> None:
    """Two answers, and a span of the agent that has the id of each, over both."""
    scene = Scene()
    attempt = scene.attempt()
    attempt.dispatch()
    for answer in ((4, 5), (6, 7)):
        attempt.llm(response=answer, text="", gateway={"gen_ai.response.id": "same"})
    for span in attempt.spans:
        span.attributes.pop("gen_ai.output.messages", None)
    attempt.evaluate(1.0)
    attempt.close()
    beside(scene)
    lie = lying(attempt)
    same: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.response.id": "same"}
    lie.emit("chat", "mine", same, start=attempt.spans[1].start - 9, end=attempt.clock)
    insert_otlp(folder, sent(scene, "agent", of_worker(attempt)))
    insert_otlp(folder, sent(Scene(attempts=[lie]), "agent"))
    assert trained(built(folder), attempt) == [[4, 5], [6, 7]]


def spoken(attempt: Attempt, **extra: Any) -> Scene:
    """Return a span of the attempt's agent with another wave, mode or task of its rollout."""
    lie = lying(attempt)
    lie.emit("think", "mine", {f"ltrain.{name}": value for name, value in extra.items()})
    return Scene(attempts=[lie])


def selected(store: Store, **which: Any) -> set[str]:
    source = Recipe.model_validate(tomllib.loads(RECIPE)).source
    spans, _ = read_spans(store, source, Selection(run="demo", **which))
    return set(spans["execution_id"])


def test_no_agent_moves_its_rollout_to_another_wave_mode_or_task(folder: Store) -> None:
    scene = Scene()
    own, validated, other = whole(scene), whole(scene, mode="val"), whole(scene, wave=1)
    insert_otlp(folder, sent(scene, "service"))
    for lie in (spoken(own, wave=1), spoken(validated, mode="train"), spoken(own, mode="val")):
        insert_otlp(folder, sent(lie, "agent"))
    assert selected(folder, mode="train", wave=0) == {own.execution}
    assert selected(folder, mode="train", wave=1) == {other.execution}
    assert selected(folder, mode="val") == {validated.execution}
    assert selected(folder, wave=7) == set()
    # what no runner dispatched is where its own spans say
    mine = Scene()
    alone = mine.attempt(task="mine", wave=7)
    alone.llm()
    insert_otlp(folder, sent(mine, "agent"))
    assert selected(folder, mode="train", wave=7) == {alone.execution}


def test_an_invented_wave_keeps_no_rollout_from_an_update(folder: Store) -> None:
    scene = Scene()
    own, other = whole(scene), whole(scene, wave=1)
    insert_otlp(folder, sent(scene, "service"))
    insert_otlp(folder, sent(spoken(own, wave=9), "agent"))
    assert selected(folder, without=("demo/train/9",)) == {own.execution, other.execution}
    assert selected(folder, without=("demo/train/0",)) == {other.execution}


def test_a_wave_is_closed_whatever_agents_add_to_it(folder: Store) -> None:
    scene = Scene()
    own, _ = whole(scene), whole(scene, wave=1)
    open_one = scene.attempt(wave=2)
    open_one.dispatch()
    insert_otlp(folder, sent(scene, "service"))
    insert_otlp(folder, sent(spoken(own, wave=1), "agent"))
    invented = Scene()
    for number in (1, 3):
        invented.attempt(task="mine", wave=number).llm()
    insert_otlp(folder, sent(invented, "agent"))
    found = read_waves(folder, Recipe.model_validate(tomllib.loads(RECIPE)).source, Selection())
    assert {place: wave["closed"] for place, wave in found.items()} == {
        "demo/train/0": True,
        "demo/train/1": True,
        "demo/train/2": False,
        "demo/train/3": False,
    }


def test_an_invented_rollout_joins_no_group_of_a_runner(folder: Store) -> None:
    scene = Scene()
    whole(scene)
    beside(scene)
    insert_otlp(folder, sent(scene, "service"))
    lie = Scene()
    invented = lie.attempt(sample=500)
    invented.llm()
    invented.evaluate(0.0, by="mine")
    invented.emit("ltrain.process", "mine", {"ltrain.rollout.spans": 4})
    insert_otlp(folder, sent(lie, "agent"))
    heard = 'reward = [{ name = "answer", evaluation = "reward", from = "any" }]'
    found = built(folder, heard)
    assert reasons(found, "executions") == ["incomplete"]
    assert set(found.tables["transitions"]["execution_id"]) == {
        attempt.execution for attempt in scene.attempts
    }
    # whose rollouts are nobody's are compared among themselves
    folder.command("TRUNCATE TABLE otel.otel_traces")
    insert_otlp(folder, sent(lie, "agent"))
    assert reasons(built(folder, heard), "executions") == []


def test_rules_pay_nothing_to_who_withholds_spans(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene, 1.0, missing=3)
    whole(scene, 1.0, sample=1)
    insert_otlp(folder, sent(scene, "agent", of_worker(attempt)))
    rule = '{ name = "calls", on = "llm", value = "1", credit_to = "rollout" }'
    late = '{ name = "fast", on = "rollout", value = "1" }'
    costs = '{ name = "cost", on = "rollout", value = "-0.5" }'
    judged = '{ name = "answer", evaluation = "reward" }'
    found = built(folder, f"reward = [{judged}, {rule}, {late}, {costs}]")
    assert dict(found.outcomes.iter_rows())[attempt.execution] == -0.5
    assert reasons(found, "rewards") == ["withheld"] * 3
    only_rules = built(folder, f"reward = [{rule}]")
    assert reasons(only_rules, "executions") == ["withheld"]
    [drop] = only_rules.tables["drops"].filter(stage="executions")["id"]
    assert drop == attempt.execution
    dataset = built(folder, f'reward = [{rule}]\nfilter = {{ allow = ["incomplete"] }}')
    assert dataset.outcomes["reward"].to_list() == [1.0, 1.0]


def test_no_agent_fills_up_what_the_gateway_still_owes(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene)
    gateway = of_gateway(attempt)
    attempt.spans.remove(gateway)
    insert_otlp(folder, sent(scene, "service"))
    lie = lying(attempt)
    lie.emit("filler", "mine", {}, process="gateway")
    insert_otlp(folder, sent(Scene(attempts=[lie]), "none"))
    assert wait_complete(folder, [attempt.rollout], 0) == {attempt.rollout}
    lie.spans = [gateway]
    insert_otlp(folder, sent(Scene(attempts=[lie]), "service"))
    assert wait_complete(folder, [attempt.rollout], 0) == set()


def test_a_drop_names_the_scope_of_a_trusted_senders_span(folder: Store) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    attempt.emit("ltrain.rollout", "mine", {})
    insert_otlp(folder, sent(scene, "local"))
    [drop] = built(folder).tables["drops"].filter(reason="untrusted")["detail"]
    assert drop == "it has the name of a runner's span, and its scope is 'mine', not ltrain.runner"


def test_a_run_and_its_rollouts_are_shown_by_the_senders_that_the_recipe_trusts(
    folder: Store, tmp_path: Path
) -> None:
    scene = Scene()
    attempt = whole(scene)
    beside(scene)
    insert_otlp(folder, sent(scene, "ingest"))
    insert_otlp(folder, sent(spoken(attempt, wave=9, mode="val"), "agent"))
    recipe = recipe_of('source = { run = "demo", trust = ["ingest"] }')
    [found] = candidates(folder, attempt.rollout, recipe.source.trust)
    assert (found.mode, found.wave, found.task) == ("train", 0, "t1")
    shown = read_rollout(folder, recipe, "a recipe", found)
    assert sorted(shown.group["reward"]) == [0.25, 1.0]
    assert shown.tables["samples"]["response_ids"].to_list() == [[4, 5]]
    run = query_waves(folder, "demo", trusted_senders(recipe.source.trust))
    [wave] = run.waves
    assert (wave.mode, wave.wave, wave.rollouts, wave.counting) == ("train", 0, 2, 2)
    assert run.outcomes.rows() == [("train", 0, "ok", 2)]
