"""`ltrain doctor` on a real `ltrain up`: refused requests, disk, keys and lag."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.fork_server import ltrain_command
from tests.http_requests import post
from tests.transforms.conftest import RECIPE
from tests.up import Up, start_up

from ltrain.doctor_collector import health_faults
from ltrain_collector.access import Keys, Role
from ltrain_instrument.instrumentors import State
from ltrain_transforms.policy_file import PolicyVersion

SMALL = ("unshare", "--map-root-user", "--mount", "sh", "-c")

StartUp = Callable[..., tuple[int, int]]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[StartUp]:
    """Start servers that end with the test, and return the ports of OTLP and SQL."""
    running: list[Up] = []

    def begin(*within: str) -> tuple[int, int]:
        running.append(start_up(tmp_path / "store", within=within))
        return running[-1].otlp, running[-1].sql

    yield begin
    for up in running:
        up.stop()


def doctor(tmp_path: Path, otlp: int, store: str, **environ: str) -> dict[str, dict[str, str]]:
    """Return the findings by name."""
    prefixes = ("LTRAIN_", "OTEL_", "TRACELOOP_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    addresses = {
        "LTRAIN_HOME": str(tmp_path / "home"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp}",
        "LTRAIN_STORE": store,
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*",  # each costs a process that imports it
    }
    done = subprocess.run(
        [ltrain_command(), "doctor", "--timeout", "50", "--json"],
        env=inherited | addresses | environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return {each["name"]: each for each in found}


def test_refused_requests_are_a_fault(tmp_path: Path, up: StartUp) -> None:
    otlp, sql = up()
    store = f"http://127.0.0.1:{sql}"
    found = doctor(tmp_path, otlp, store)
    assert found["store"]["state"] == "ok"
    assert found["health"]["state"] != "fault"  # a note if this machine's disk is nearly full
    assert [post(otlp, body).status for body in (b"\xff", b"\xfe")] == [400, 400]
    health = doctor(tmp_path, otlp, store)["health"]
    assert health["state"] == "fault"
    assert health["detail"].startswith("requests refused in the last five minutes: 2 malformed")
    assert "are lost: fix their sender" in health["fix"]


def test_a_target_that_misses_requests_is_a_fault() -> None:
    answer = {
        "recent": {"refused": {}, "rejected": 0, "failures": 0, "lag": 0},
        "disk": {"size": 1 << 40, "free": 1 << 40},
        "version": version("ltrain"),
        "forward": {
            "langfuse": {
                "away": True,
                "waiting_bytes": 3 << 20,
                "missing": {"full": 2, "refused": 1},
                "rejected": 1,
            },
            "phoenix": {"away": False, "waiting_bytes": 9, "missing": {}, "rejected": 0},
        },
        "returned": 3,
    }
    assert [(state, problem) for state, problem, _ in health_faults(answer)] == [
        (State.FAULT, "the target 'langfuse' does not accept requests, 3.0 MiB wait"),
        (State.FAULT, "requests that the target 'langfuse' misses: 2 full, 1 refused"),
        (State.NOTE, "the target 'langfuse' rejected 1 record"),
        (State.FAULT, "3 requests that it had forwarded came back"),
    ]


def test_a_missing_or_wrong_key_is_a_fault(tmp_path: Path, up: StartUp) -> None:
    keys = Keys(tmp_path / "store")
    made = {role: keys.make_key(role)[0] for role in Role}
    otlp, sql = up()
    found = doctor(tmp_path, otlp, f"http://127.0.0.1:{sql}")
    assert found["collector"]["state"] == "fault"
    assert found["collector"]["fix"].startswith("Set OTEL_EXPORTER_OTLP_HEADERS")
    assert found["store"]["detail"] == f"http://127.0.0.1:{sql}: it requires a key"
    assert "ltrain key make query" in found["store"]["fix"]
    assert found["health"]["state"] != "fault"

    header = f"authorization=Bearer%20{made[Role.QUERY]}"
    wrong = f"http://any:{made[Role.INGEST]}@127.0.0.1:{sql}"
    found = doctor(tmp_path, otlp, wrong, OTEL_EXPORTER_OTLP_HEADERS=header)
    assert "A key of role 'query' cannot send" in found["collector"]["detail"]
    assert found["store"]["detail"] == f"http://127.0.0.1:{sql}: it refuses the key"
    assert all(key not in json.dumps(found) for key in made.values())

    header = f"authorization=Bearer%20{made[Role.INGEST]}"
    right = f"http://any:{made[Role.QUERY]}@127.0.0.1:{sql}"
    found = doctor(tmp_path, otlp, right, OTEL_EXPORTER_OTLP_HEADERS=header)
    assert (found["collector"]["state"], found["store"]["state"]) == ("ok", "ok")


def test_doubled_instrumentation_is_a_note(tmp_path: Path, up: StartUp) -> None:
    otlp, sql = up()
    store = f"http://127.0.0.1:{sql}"
    assert "doubled" not in doctor(tmp_path, otlp, store)
    request = ExportTraceServiceRequest()
    now = time.time_ns()

    def call(scope: str, trace: int, span_id: int, **attributes: str) -> None:
        resource = request.resource_spans.add()
        resource.resource.attributes.add(key="service.instance.id").value.string_value = "p"
        scoped = resource.scope_spans.add()
        scoped.scope.name = scope
        ids = {"trace_id": bytes([trace] * 16), "span_id": bytes([span_id] * 8)}
        times = {"start_time_unix_nano": now - 10**9, "end_time_unix_nano": now}
        span = scoped.spans.add(name="chat", **ids, **times)
        for name, value in {"gen_ai.operation.name": "chat", **attributes}.items():
            span.attributes.add(key=name).value.string_value = value

    answer = {"gen_ai.completion.0.content": "yes"}
    for number, scopes in enumerate((("a.framework", "a.client"), ("a.client",)), 1):
        for scope in scopes:
            span_id = 2 * number + (scope == "a.client")
            call(scope, number, span_id, **answer, **{"gen_ai.response.id": f"r{number}"})
    assert post(otlp, request.SerializeToString()).status == 200
    assert "doubled" not in doctor(tmp_path, otlp, store)  # other calls with the same answer

    for number, scope in enumerate(("a.framework", "a.client"), 8):
        call(scope, number, number, **{"gen_ai.response.id": "r"})
    assert post(otlp, request.SerializeToString()).status == 200
    found = doctor(tmp_path, otlp, store)["doubled"]
    assert found["state"] == "note"
    assert found["detail"].startswith("1 model call was recorded twice in the last day with spans")
    assert "a.client and a.framework" in found["detail"]
    assert "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS" in found["fix"]


def test_spans_that_look_like_calls_of_an_unknown_instrumentation_are_a_note(
    tmp_path: Path, up: StartUp
) -> None:
    otlp, sql = up()
    store = f"http://127.0.0.1:{sql}"
    assert "dialects" not in doctor(tmp_path, otlp, store)
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    scoped.scope.name, scoped.scope.version = "acme.tracing", "2.1"
    times = {"start_time_unix_nano": time.time_ns(), "end_time_unix_nano": time.time_ns()}
    span = scoped.spans.add(name="ask", trace_id=bytes(15) + b"1", span_id=bytes(7) + b"1", **times)
    for name in ("acme.prompt", "acme.completion"):
        span.attributes.add(key=name).value.string_value = "hi"
    assert post(otlp, request.SerializeToString()).status == 200
    found = doctor(tmp_path, otlp, store)["dialects"]
    assert found["state"] == "note"
    assert found["detail"] == (
        "no dialect reads acme.completion, acme.prompt of the scope 'acme.tracing' 2.1, in 1 span"
    )
    assert "[[source.dialect]]" in found["fix"]


def test_a_policy_that_does_not_see_the_tools_of_its_calls_is_a_note(
    tmp_path: Path, up: StartUp
) -> None:
    otlp, sql = up()
    store = f"http://127.0.0.1:{sql}"
    (tmp_path / "ltrain.toml").write_text(RECIPE)
    version = tmp_path / "home" / "policies" / "sql" / "v0"
    version.mkdir(parents=True)
    manifest = PolicyVersion(policy="sql", version=0, created=0, files={})
    (version / "policy.json").write_text(manifest.model_dump_json())
    version.with_name("current").write_text("0\n")
    (version / "chat_template.jinja").write_text("{{ messages }}")
    assert "template" not in doctor(tmp_path, otlp, store)
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    scoped.scope.name = "ltrain.gateway"
    now = time.time_ns()
    times = {"start_time_unix_nano": now - 10**9, "end_time_unix_nano": now}
    span = scoped.spans.add(name="chat", trace_id=b"t" * 16, span_id=b"s" * 8, **times)
    span.attributes.add(key="gen_ai.tool.definitions").value.string_value = '[{"name":"f"}]'
    policy = span.attributes.add(key="ltrain.policy.name").value
    policy.string_value = "another"
    assert post(otlp, request.SerializeToString()).status == 200
    assert "template" not in doctor(tmp_path, otlp, store)
    policy.string_value, span.span_id = "sql", b"r" * 8
    assert post(otlp, request.SerializeToString()).status == 200
    found = doctor(tmp_path, otlp, store)["template"]
    assert found["state"] == "note"
    assert found["detail"].startswith("The chat template of policy 'sql' renders no tools")
    assert found["fix"].startswith("Set serve.chat_template")
    for more in ('upstream = "http://127.0.0.1:9"', 'vllm = ["--chat-template={{ tools }}"]'):
        (tmp_path / "ltrain.toml").write_text(f"{RECIPE}\n[serve]\n{more}\n")
        assert "template" not in doctor(tmp_path, otlp, store)
    (tmp_path / "ltrain.toml").write_text(RECIPE)
    (version / "chat_template.jinja").write_text("{{ tools }}{{ messages }}")
    assert "template" not in doctor(tmp_path, otlp, store)


def test_a_nearly_full_disk_is_a_fault(tmp_path: Path, up: StartUp) -> None:
    script = ('mount -t tmpfs -o size=64m none "$0" && exec "$@"', str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    if not shutil.which("unshare") or subprocess.run((*SMALL, *script, "true")).returncode:
        pytest.skip("users may not mount a disk on this machine")
    (tmp_path / "store").symlink_to(tmp_path / "disk" / "store")
    otlp, sql = up(*SMALL, script[0].replace("&& exec", '&& mkdir "$0/store" && exec'), script[1])
    health = doctor(tmp_path, otlp, f"http://127.0.0.1:{sql}")["health"]
    assert health["state"] == "fault"
    assert re.fullmatch(r"only 0\.0\d GiB of the store's disk are free", health["detail"])
    assert "ltrain store prune" in health["fix"]


def test_a_store_that_was_removed_is_a_fault(tmp_path: Path, up: StartUp) -> None:
    otlp, sql = up()
    shutil.rmtree(tmp_path / "store")
    health = doctor(tmp_path, otlp, f"http://127.0.0.1:{sql}")["health"]
    assert health["state"] == "fault"
    assert "was removed or replaced while it was open" in health["detail"]


def test_every_fault_of_health_is_reported() -> None:
    answer: dict[str, Any] = {
        "version": "0.0.1",
        "recent": {
            "requests": 9,
            "rejected": 3,
            "refused": {"engine": 2, "overloaded": 1},
            "failures": 2,
            "lag": 10.0,
        },
        "disk": {"size": 1 << 40, "free": 40 << 30},
    }
    found = [(state, what) for state, what, _ in health_faults(answer)]
    assert found[:5] == [
        (State.FAULT, "requests refused in the last five minutes: 2 engine, 1 overloaded"),
        (State.NOTE, "3 records rejected in the last five minutes"),
        (State.FAULT, "2 inserts failed in the last five minutes"),
        (State.FAULT, "requests are stored after up to 10 s"),
        (State.NOTE, "only 40.00 GiB of the store's disk are free"),
    ]
    assert found[5][1].startswith("it is ltrain 0.0.1, this is ")
    answer["disk"]["free"] = 1 << 29
    assert (State.FAULT, "only 0.50 GiB of the store's disk are free") in [
        (state, what) for state, what, _ in health_faults(answer)
    ]
