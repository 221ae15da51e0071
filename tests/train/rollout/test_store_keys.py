"""An agent has a store key of its own attempt: it can write its spans, but not trusted rewards."""

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.up import running_up

from ltrain_collector.access import Keys, Role, store_secret
from ltrain_collector.store import Store
from ltrain_instrument.delivery import Spool
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.identity import Identity, rollout_id
from ltrain_train.rollout.runner import Runner
from ltrain_train.rollout.store_keys import StoreKeys
from ltrain_train.rollout.tasks import Task
from ltrain_train.workers import Outcome

FORGER = '''\
import json, os, sys, time, urllib.error, urllib.request
from urllib.parse import unquote
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp

DISPATCH = os.environ["TRACEPARENT"].split("-")

def post(number, name, **attributes):
    """Post a span with each key of the environment; return the store's responses."""
    request = otlp.ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    span = scoped.spans.add(name=name, start_time_unix_nano=time.time_ns())
    span.trace_id, span.parent_span_id = map(bytes.fromhex, DISPATCH[1:3])
    span.span_id = number.to_bytes(8, "big")
    for key, value in attributes.items():
        attribute = span.attributes.add(key=key.replace("__", ".")).value
        if isinstance(value, float):
            attribute.double_value = value
        else:
            attribute.string_value = value
    answers = []
    for variable, text in os.environ.items():
        if not variable.endswith("_HEADERS"):
            continue
        for pair in text.split(","):
            name, _, value = pair.partition("=")
            headers = {name: unquote(value), "Content-Type": "application/x-protobuf"}
            url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
            sent = urllib.request.Request(url, request.SerializeToString(), headers)
            with urllib.request.urlopen(sent) as answer:
                response = otlp.ExportTraceServiceResponse.FromString(answer.read())
            answers.append(response.partial_success.rejected_spans)
    return answers

with trace.get_tracer("agent").start_as_current_span("work"):
    pass
worth = {"gen_ai__evaluation__name": "reward", "gen_ai__evaluation__score__value": 9.0}
tried = {
    "own": post(1, "thought"),
    "reward": post(2, "gen_ai.evaluation.result", **worth),
    "close": post(3, "ltrain.rollout", ltrain__outcome="ok"),
    "other": post(4, "thought", ltrain__rollout__id="another"),
}
report = {"tried": tried, "environ": dict(os.environ)}
with open(sys.argv[1], "w") as file:
    json.dump(report, file)
print(json.dumps({"answer": "done"}))
'''


def test_an_evaluation_of_an_agent_is_stored_as_the_agents(
    served: Any,
    runner: Callable[..., Runner],
    task: Callable[..., Task],
    tmp_path: Path,
) -> None:
    script = tmp_path / "forger.py"
    script.write_text(FORGER)
    command = f"python {script} {tmp_path / 'found.json'}"
    agents_runner = runner(command, reward="scores:one")
    (result,) = agents_runner.run("train", 0, [task()], 1, sampling={})
    assert (result.outcome, result.rewards) == (Outcome.OK, {"reward": 1.0}), result.reason
    agents_runner.__exit__(None, None, None)

    assert not list((served.home / "agents").iterdir())  # all of it was sent

    report = json.loads((tmp_path / "found.json").read_text())
    assert report["tried"] == {
        "own": [0, 0],  # by OTEL_EXPORTER_OTLP_HEADERS and OTEL_EXPORTER_OTLP_TRACES_HEADERS
        "reward": [0, 0],
        "close": [1, 1],
        "other": [1, 1],
    }
    values = " ".join(value for value in report["environ"].values())
    secrets = [os.environ["OTEL_EXPORTER_OTLP_HEADERS"], served.dsn]
    secrets.append((served.home / "store.secret").read_text())
    assert not [secret for secret in secrets if secret in values]

    with Store.open(served.dsn) as store:
        rewards = store.query("SELECT source, rollout, name, value FROM otel.evaluations").rows()
        rollout = result.identity.rollout
        words = {("runner", rollout, "reward", 1.0), ("agent", rollout, "reward", 9.0)}
        assert set(rewards) == words
        closed = store.query("SELECT rollout, outcome FROM otel.rollouts").rows()
        assert closed == [(result.identity.rollout, "ok")]
        spans = store.query("SELECT SpanName, RolloutId FROM otel.spans ORDER BY SpanName")
        assert {rollout for _, rollout in spans.rows()} == {result.identity.rollout}
        assert {"work", "thought", "ltrain.process"} <= set(spans["SpanName"])


LEAVER = """\
import json, os, sys, time
from pathlib import Path
from ltrain_instrument.delivery.spool import Spool
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp

mark = Path(sys.argv[1])
while json.loads(os.environ["LTRAIN_TASK"])["id"] == "ends" and not mark.exists():
    time.sleep(0.05)
if not mark.exists():
    request = otlp.ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="left")
    span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
    span.start_time_unix_nano = span.end_time_unix_nano = time.time_ns()
    spool = Spool(Path(os.environ["LTRAIN_HOME"]) / "spool", "http://127.0.0.1:9")
    spool.append(request.SerializeToString())
    spool.close(0)
    mark.touch()
    time.sleep(600)
"""


def test_leftover_spans_of_a_cancelled_attempt_are_sent_when_its_process_has_ended(
    served: Any, runner: Callable[..., Runner], task: Callable[..., Task], tmp_path: Path
) -> None:
    script = tmp_path / "leaver.py"
    script.write_text(LEAVER)
    command = f"OTEL_SDK_DISABLED=true python {script} {tmp_path / 'mark'}"
    agents_runner = runner(command, workers=2, timeout=600.0)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agents_runner.run("train", 0, [task("stays"), task("ends")], 1, sampling={}, on_result=stop)
    agents_runner.__exit__(None, None, None)
    assert not list((served.home / "agents").iterdir())
    with Store.open(served.dsn) as store:
        spans = store.query("SELECT RolloutId FROM otel.spans WHERE SpanName = 'left'")
    assert spans["RolloutId"].to_list() == [rollout_id("r", "train", 0, "stays", 0)]


def write_leftovers(home: Path, *attempts: str, spans: int = 1) -> None:
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    for _ in range(spans):
        span = scoped.spans.add(name="left", start_time_unix_nano=time.time_ns())
        span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
    for name in attempts:
        spool = Spool(home / "agents" / name / "spool", "http://127.0.0.1:9")
        spool.append(request.SerializeToString())
        spool.close(0)


def test_a_wave_first_sends_leftover_spans_of_a_killed_run(
    home: Path, outside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = StoreKeys("s" * 32, home)
    wave = [Identity(run="r", rollout=name, task="t", mode="train") for name in ("abc", "def")]
    write_leftovers(home, "abc.1", "abc.2", "def.1", "other.1")
    (home / "agents" / "r" / "spool").mkdir(parents=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    keys.send_earlier_leftovers(wave)
    assert len(list((home / "agents").iterdir())) == 5, "no collector took anything"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", outside.url)
    keys.send_earlier_leftovers(wave)
    assert {each.name for each in (home / "agents").iterdir()} == {"other.1", "r"}
    assert len(outside.requests) == 3


def test_an_attempt_over_its_budget_of_a_minute_is_sent_after_the_others(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**os.environ, "LTRAIN_BOUND_LIMITS": "records=600"}  # ten a second
    with running_up(tmp_path / "store", environ=environ) as up:
        keys = StoreKeys(store_secret(tmp_path / "store"), home)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", up.endpoint)
        wave = [Identity(run="r", rollout=name, task="t", mode="train") for name in ("abc", "def")]
        greedy = replace(wave[0], attempt=1)
        write_leftovers(home, "abc.1", spans=600)
        assert keys.send_leftovers(greedy)
        write_leftovers(home, "abc.1", spans=40)
        assert keys.send_leftovers(greedy), "the collector accepts more of others"
        write_leftovers(home, "def.1", "def.2")
        keys.send_earlier_leftovers(wave)
        assert [each.name for each in (home / "agents").iterdir()] == ["abc.1"]
        began = time.monotonic()
        keys.send_all_leftovers([])
        assert time.monotonic() - began > 1
        assert not list((home / "agents").iterdir())
        with Store.open(up.owned) as store:
            spans = store.query("SELECT RolloutId, count() FROM otel.spans GROUP BY ALL").rows()
        assert dict(spans) == {"abc": 640, "def": 2}


def test_spans_that_the_collector_refused_for_good_are_counted_and_removed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {**os.environ, "LTRAIN_BOUND_LIMITS": "records=10"}
    with running_up(tmp_path / "store", environ=environ) as up:
        keys = StoreKeys(store_secret(tmp_path / "store"), home)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", up.endpoint)
        attempt = Identity(run="r", rollout="abc", attempt=1, task="t", mode="train")
        spool = home / "agents" / "abc.1" / "spool"
        for _ in range(2):
            write_leftovers(home, "abc.1", spans=11)
        (spool / "damaged").mkdir()
        (spool / "damaged" / "1.otlp").write_bytes(bytes(9))
        kept = spool.with_name("notes.txt")
        kept.touch()
        with caplog.at_level(logging.WARNING):
            assert keys.send_leftovers(attempt)
        dropped = [each for each in caplog.messages if "dropped" in each]
        assert dropped == [
            "ltrain: attempt abc.1: 2 files of spans dropped: refused",
            "ltrain: attempt abc.1: 1 file of spans dropped: damaged",
        ]
        assert list(kept.parent.iterdir()) == [kept]


def test_a_key_is_bound_to_the_full_identity_of_its_attempt(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("LTRAIN_STORE", raising=False)
    identity = Identity(run="r", rollout="abc", attempt=2, task="t", wave=0, sample=1, mode="train")
    (home / "store").mkdir(parents=True)
    keys = Keys(home.absolute() / "store")
    signer = StoreKeys.from_home(home, {})
    assert signer is not None
    environ = signer.attempt_environment(identity, keys.sign_bound(identity, 60))
    scheme, key = str(environ["OTEL_EXPORTER_OTLP_HEADERS"]).split("%20")
    assert scheme == "Authorization=Bearer"
    grant = keys.require_key({"authorization": f"Bearer {key}"})
    assert grant.identity == {n: str(v) for n, v in identity.attributes().items()}


def test_without_a_local_secret_the_agents_environment_is_unchanged(
    runner: Callable[..., Runner],
    task: Callable[..., Task],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=7,Authorization=Basic%20abc")
    agents_runner = runner(f"env > {tmp_path / 'env'}")
    (result,) = agents_runner.run("train", 0, [task()], 1, sampling={})
    assert result.outcome is Outcome.OK
    lines = (tmp_path / "env").read_text().splitlines()
    headers = "OTEL_EXPORTER_OTLP_HEADERS=tenant=7,Authorization=Basic%20abc"
    assert {headers, f"LTRAIN_HOME={home}"} <= set(lines)


def test_keys_for_a_remote_store_are_signed_only_with_its_secret(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    Keys(home.absolute() / "store").make_key(Role.QUERY)
    monkeypatch.setenv("LTRAIN_STORE", "http://any:key@store.example:8123")
    assert StoreKeys.from_home(home, {}) is None
    monkeypatch.setenv("LTRAIN_STORE_SECRET", "s" * 32)
    signer = StoreKeys.from_home(home, {})
    assert signer is not None
    assert signer.secret == "s" * 32


def test_an_unreadable_secret_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LTRAIN_STORE", raising=False)
    Keys(home.absolute() / "store").make_key(Role.QUERY)
    (home / "store").mkdir()
    (home / "store.secret").mkdir()
    with pytest.raises(BadSetting, match="Set LTRAIN_STORE_SECRET to the secret"):
        StoreKeys.from_home(home, {})
