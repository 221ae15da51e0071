import json
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import clickhouse_connect
import jwt
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from tests import http_requests
from tests.fork_server import ltrain_command

from ltrain_collector.access.grants import Grant, Role, Sender
from ltrain_collector.access.keys import Keys, NoSuchKey
from ltrain_collector.access.secrets import store_secret
from ltrain_collector.access.signed_keys import (
    AttemptKey,
    Kind,
    sign_admin,
    sign_bound,
    sign_kind,
    sign_owner,
    sign_service,
)
from ltrain_collector.errors import HttpError, StoreUnreachable
from ltrain_collector.store import Store
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity

SECRET = "0123456789abcdef0123456789abcdef"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


FREE = ("--otlp-port", "0", "--grpc-port", "0", "--http-port", "0")


def ltrain(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [ltrain_command(), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_only_the_digest_of_a_made_key_is_stored(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    key, made = keys.make_key(Role.QUERY, "grafana")
    file = tmp_path / "store.keys.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key not in file.read_text()
    [row] = json.loads(file.read_text())
    assert (row["id"], row["role"], row["note"]) == (made.id, "query", "grafana")
    assert Keys(tmp_path / "store").require_key(bearer(key)) == Grant(Role.QUERY, made.id)


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"authorization": "Bearer {}"}, {}),
        ({"authorization": "bearer   {}"}, {}),
        ({"x-clickhouse-user": "query", "x-clickhouse-key": "{}"}, {}),
        ({}, {"user": "default", "password": "{}"}),
    ],
)
def test_a_key_is_taken_from_where_clients_put_it(
    tmp_path: Path, headers: dict[str, str], fields: dict[str, str]
) -> None:
    keys = Keys(tmp_path / "store")
    key, made = keys.make_key(Role.ADMIN)
    filled = [{name: text.format(key) for name, text in each.items()} for each in (headers, fields)]
    assert keys.require_key(*filled).name == made.id


def test_a_revoked_key_is_unknown_to_a_store_that_runs(tmp_path: Path) -> None:
    running, command = Keys(tmp_path / "store"), Keys(tmp_path / "store")
    key, made = command.make_key(Role.INGEST)
    assert running.require_key(bearer(key)).can_ingest
    command.revoke_key(made.id)
    with pytest.raises(HttpError, match="revoked") as refused:
        running.require_key(bearer(key))
    assert refused.value.status == 403
    assert key not in str(refused.value)
    with pytest.raises(NoSuchKey, match="Its keys: none"):
        command.revoke_key(made.id)


def test_keys_that_are_made_at_once_are_all_kept(tmp_path: Path) -> None:
    def some(number: int) -> None:
        for _ in range(10):
            Keys(tmp_path / "store").make_key(Role.QUERY, str(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))
    assert len(Keys(tmp_path / "store").made_keys()) == 40


def test_a_store_that_had_a_key_always_needs_one(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    assert not keys.requires_key
    _, made = keys.make_key(Role.ADMIN)
    keys.revoke_key(made.id)
    assert keys.requires_key
    (tmp_path / "store.keys.json").unlink()
    assert keys.requires_key
    with pytest.raises(HttpError, match="needs a key"):
        keys.authenticate({"host": "127.0.0.1"})


def test_a_bound_key_contains_its_identity(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    identity = Identity(run="r", rollout="abc", attempt=2, mode="train", wave=0)
    grant = keys.require_key(bearer(keys.sign_bound(identity, 60, rewards=True)))
    assert grant == Grant(
        Role.INGEST,
        "abc.2",
        {
            "ltrain.run.id": "r",
            "ltrain.rollout.id": "abc",
            "ltrain.attempt.id": "2",
            "ltrain.mode": "train",
            "ltrain.wave": "0",
        },
        rewards=True,
    )
    assert stat.S_IMODE((tmp_path / "store.secret").stat().st_mode) == 0o600


def test_the_key_of_an_attempts_calls_sends_its_spans(tmp_path: Path) -> None:
    identity = Identity(run="r", task="t", rollout="abc", attempt=2, mode="train", wave=0)
    calls: dict[str, Any] = {"policy": "sql", "sampling": {"temperature": 0.5}}
    key = AttemptKey(identity=identity, rewards=True, expires=Deadline.after(60), **calls)
    keys = Keys(tmp_path / "store")
    grant = keys.require_key(bearer(key.sign(store_secret(tmp_path / "store"))))
    assert grant == keys.require_key(bearer(keys.sign_bound(identity, 60, rewards=True)))
    assert (grant.bound, grant.can_read, grant.sender) == (True, False, Sender.AGENT)


def test_a_runner_elsewhere_signs_with_the_same_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_STORE_SECRET", SECRET)
    key = sign_bound(SECRET, Identity(rollout="abc"), 60)
    assert Keys(tmp_path / "store").require_key(bearer(key)).rollout == "abc"
    assert not (tmp_path / "store.secret").exists()


def test_a_run_key_names_no_rollout(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    grant = keys.require_key(bearer(keys.sign_bound(Identity(run="r", mode="train"), 60)))
    assert grant == Grant(Role.INGEST, "r", {"ltrain.run.id": "r", "ltrain.mode": "train"})
    assert (grant.bound, grant.rollout, grant.sender) == (True, None, Sender.AGENT)
    with pytest.raises(ValueError, match="its rollout, or of its run"):
        keys.sign_bound(Identity(mode="train"), 60)


def test_a_service_signs_its_own_key(tmp_path: Path) -> None:
    key = sign_service(store_secret(tmp_path / "store"), 60)
    grant = Keys(tmp_path / "store").require_key(bearer(key))
    assert grant == Grant(Role.SERVICE, "service")
    assert (grant.can_ingest, grant.can_read, grant.bound) == (True, False, False)


@pytest.mark.parametrize(
    ("role", "sender"),
    [
        (Role.INGEST, Sender.INGEST),
        (Role.SERVICE, Sender.SERVICE),
        (Role.ADMIN, Sender.ADMIN),
        (Role.QUERY, Sender.NONE),
    ],
)
def test_a_grant_names_its_sender(tmp_path: Path, role: Role, sender: Sender) -> None:
    keys = Keys(tmp_path / "store")
    assert keys.require_key(bearer(keys.make_key(role)[0])).sender is sender


def test_a_store_without_keys_checks_the_key_it_is_shown(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    here = {"host": "127.0.0.1"}
    assert keys.authorize_ingest(here) is None
    grant = keys.authorize_ingest(here | bearer(keys.sign_bound(Identity(rollout="abc"), 60)))
    assert grant is not None
    assert grant.rollout == "abc"
    expired = keys.sign_bound(Identity(rollout="abc"), -1)
    for wrong in (expired, "lt_unknown", sign_service(SECRET, 60)):
        with pytest.raises(HttpError) as refused:
            keys.authorize_ingest(here | bearer(wrong))
        assert refused.value.status == 403
    with pytest.raises(HttpError, match="cannot read"):
        keys.authorize_read(here | bearer(keys.sign_bound(Identity(rollout="abc"), 60)))
    assert not keys.requires_key


def test_an_owners_key_allows_everything(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    grant = keys.require_key(bearer(sign_owner(store_secret(tmp_path / "store"), 60)))
    assert (grant.role, grant.name, grant.sender) == (Role.ADMIN, "owner", Sender.ADMIN)
    assert grant.can_read and grant.can_ingest and not grant.bound
    with pytest.raises(HttpError):
        keys.require_key(bearer(sign_owner(store_secret(tmp_path / "store"), -1)))


def test_a_remembered_key_expires(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "store")
    key = keys.sign_bound(Identity(rollout="abc"), 2)
    assert keys.require_key(bearer(key)).rollout == "abc"
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            keys.require_key(bearer(key))
        except HttpError:
            return
        time.sleep(0.05)
    pytest.fail("it never expired")


def forged(**claims: Any) -> dict[str, Any]:
    good = {"kind": "ingest", "identity": {"ltrain.rollout.id": "abc"}, "exp": 4_000_000_000}
    return {**good, **claims}


@pytest.mark.parametrize(
    "make",
    [
        lambda secret: jwt.encode(forged(), SECRET, algorithm="HS256"),
        lambda secret: jwt.encode(forged(), "", algorithm="none"),
        lambda secret: jwt.encode(forged(), secret * 2, algorithm="HS512"),
        lambda secret: jwt.encode(forged(kind="admin"), secret, algorithm="HS256"),
        lambda secret: jwt.encode(forged(kind="rollout"), secret, algorithm="HS256"),
        lambda secret: jwt.encode(forged(identity={}), secret, algorithm="HS256"),
        lambda secret: jwt.encode(forged(kind="service"), SECRET, algorithm="HS256"),
        lambda secret: jwt.encode({"kind": "service"}, secret, algorithm="HS256"),
        lambda secret: jwt.encode(forged(kind="owner"), SECRET, algorithm="HS256"),
        lambda secret: jwt.encode({"kind": "owner"}, secret, algorithm="HS256"),
        lambda secret: jwt.encode(
            forged(identity={"ltrain.mode": "train"}), secret, algorithm="HS256"
        ),
        lambda secret: jwt.encode(forged(identity="abc"), secret, algorithm="HS256"),
        lambda secret: jwt.encode(forged(exp=1), secret, algorithm="HS256"),
        lambda secret: jwt.encode({"kind": "ingest"}, secret, algorithm="HS256"),
        sign_admin,
        lambda secret: sign_kind(secret, Kind.WORKER, 60),
        lambda secret: "a.b.c",
        lambda secret: "lt_" + "x" * 43,
        lambda secret: secret,
    ],
)
def test_a_forged_key_is_refused(tmp_path: Path, make: Any) -> None:
    keys = Keys(tmp_path / "store")
    keys.make_key(Role.ADMIN)
    with pytest.raises(HttpError) as refused:
        keys.require_key(bearer(make(store_secret(tmp_path / "store"))))
    assert refused.value.status == 403


def test_unreadable_keys_are_reported(tmp_path: Path) -> None:
    (tmp_path / "store.keys.json").write_text("[{")
    done = ltrain("up", "--dir", str(tmp_path / "store"), *FREE)
    assert done.returncode == 1
    assert "cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_makes_lists_and_revokes(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "store"))
    made = ltrain("key", "make", "query", "--note", "grafana", *where)
    key = made.stdout.strip()
    grant = Keys(tmp_path / "store").require_key(bearer(key))
    listed = ltrain("key", "list", *where).stdout
    assert listed.startswith(f"{grant.name}  query ")
    assert "grafana" in listed
    assert key not in listed
    assert ltrain("key", "revoke", grant.name, *where).returncode == 0
    assert ltrain("key", "list", *where).stdout == "No keys: every request is refused.\n"
    again = ltrain("key", "revoke", grant.name, *where)
    assert (again.returncode, "has no key" in again.stderr) == (1, True)


def test_the_command_binds_to_a_rollout(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "store"))
    bind = ("--bind", "rollout=abc", "--bind", "attempt=1", "--bind", "mode=val")
    key = ltrain("key", "make", "ingest", *bind, *where).stdout.strip()
    assert Keys(tmp_path / "store").require_key(bearer(key)).identity == {
        "ltrain.rollout.id": "abc",
        "ltrain.attempt.id": "1",
        "ltrain.mode": "val",
    }


def test_the_command_binds_to_a_run(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "store"))
    key = ltrain("key", "make", "ingest", "--bind", "run=demo", *where).stdout.strip()
    assert Keys(tmp_path / "store").require_key(bearer(key)).identity == {"ltrain.run.id": "demo"}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("boss",), "Unknown role 'boss'"),
        (("query", "--bind", "rollout=a"), "Only ingest keys are bound"),
        (("ingest", "--bind", "attempt=1"), "Only ingest keys are bound"),
        (("ingest", "--bind", "rollout=a", "--bind", "who=me"), "'who'"),
        (("ingest", "--bind", "rollout=a", "--bind", "attempt=one"), "whole numbers"),
        (("ingest", "--bind", "rollout=a", "--bind", "mode=tset"), "train, val, prod, test"),
    ],
)
def test_a_key_that_cannot_be_is_reported(tmp_path: Path, argv: tuple[str, ...], says: str) -> None:
    done = ltrain("key", "make", *argv, "--dir", str(tmp_path / "store"))
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_without_keys_only_this_machine_is_served(tmp_path: Path) -> None:
    done = ltrain("up", "--dir", str(tmp_path / "s"), "--host", "0.0.0.0", *FREE)
    assert done.returncode == 1
    assert "ltrain key make" in done.stderr
    assert not (tmp_path / "s").exists()


@pytest.fixture
def keyed(tmp_path: Path, start: Any) -> tuple[Any, dict[str, str], Keys]:
    """A server that other machines can reach, and a key of each role."""
    keys = Keys(tmp_path / "store")
    made = {role.value: keys.make_key(role)[0] for role in Role}
    wide = ("--host", "0.0.0.0", "--allow-host", "store.example")
    return start(tmp_path / "store", 0, 0, *wide), made, keys


def post(port: int, body: bytes, key: str = "") -> http_requests.Answer:
    authorization = {"Authorization": f"Bearer {key}"} if key else {}
    return http_requests.post(port, body, Host="store.example", **authorization)


def test_each_role_allows_its_own_requests(keyed: Any, request_of: Any) -> None:
    up, made, keys = keyed
    body = request_of((1, 1), ltrain__rollout__id="abc")
    bound = keys.sign_bound(Identity(rollout="abc"), 60)
    shut = [post(up.otlp, body, key).status for key in ("", "wrong", made["query"])]
    assert shut == [401, 403, 403]
    opened = [post(up.otlp, body, key).status for key in (made["ingest"], made["admin"], bound)]
    assert opened == [200, 200, 200]
    for key, code in (("", 516), ("wrong", 516), (made["ingest"], 497), (bound, 497)):
        with pytest.raises(DatabaseError, match=f"Code: {code}") as failure:
            clickhouse_connect.get_client(host="127.0.0.1", port=up.sql, password=key)
        assert not key or key not in str(failure.value)
    with clickhouse_connect.get_client(
        host="127.0.0.1", port=up.sql, username="any", password=made["query"]
    ) as client:
        assert client.query("SELECT count() FROM otel.spans").result_rows == [(1,)]
        with pytest.raises(DatabaseError, match="Code: 497"):
            client.insert("otel.otel_trace_executions", [["t", "", "", ""]])
    with clickhouse_connect.get_client(
        host="127.0.0.1", port=up.sql, password=made["admin"]
    ) as client:
        client.command("CREATE TABLE otel.t (a UInt8) ENGINE = MergeTree ORDER BY a")
        assert client.insert("otel.t", [[1]], column_names=["a"]).written_rows == 1


def test_a_store_is_opened_with_its_key(keyed: Any, request_of: Any) -> None:
    up, made, _ = keyed
    assert post(up.otlp, request_of((1, 1), (1, 2)), made["ingest"]).status == 200
    with Store.open(f"http://reader:{made['query']}@127.0.0.1:{up.sql}") as store:
        assert store.query("SELECT count() AS n FROM otel.spans")["n"].item() == 2
        assert sum(part.height for part in store.stream("SELECT * FROM otel.spans")) == 2
    with pytest.raises(StoreUnreachable, match="does not serve") as failure:
        Store.open(f"http://reader:lt_not-a-key@127.0.0.1:{up.sql}")
    assert "lt_not-a-key" not in str(failure.value)


def test_an_instrumented_agent_carries_its_key(keyed: Any, tmp_path: Path) -> None:
    up, made, keys = keyed
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import ltrain\nfrom opentelemetry import trace\n"
        "with trace.get_tracer('mine').start_as_current_span('think'): pass\n"
        "ltrain.reward(1.0)\n"
    )
    identity = Identity(run="r", rollout="abc", attempt=1)
    environment = {
        **os.environ,
        **identity.environ(),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{up.otlp}",
        "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer%20{keys.sign_bound(identity, 600)}",
        "LTRAIN_HOME": str(tmp_path / "home"),
    }
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable]
    subprocess.run([*command, str(agent)], env=environment, check=True, timeout=120)
    with Store.open(f"http://reader:{made['query']}@127.0.0.1:{up.sql}") as store:
        sql = "SELECT SpanName, RunId, RolloutId, Attempt FROM otel.spans ORDER BY SpanName"
        assert store.query(sql).rows() == [
            ("ltrain.process", "r", "abc", "1"),
            ("think", "r", "abc", "1"),
        ]


def test_what_a_bound_key_may_not_say_is_counted(keyed: Any, request_of: Any) -> None:
    up, made, keys = keyed
    key = keys.sign_bound(Identity(rollout="abc", attempt=1), 60)
    own = request_of((1, 1), (1, 2), name="think")
    other = request_of((1, 3), ltrain__rollout__id="def")
    reward = request_of((1, 4), name="gen_ai.evaluation.result")
    status, body, _ = post(up.otlp, own + other + reward, key)
    partial = ExportTraceServiceResponse.FromString(body).partial_success
    assert (status, partial.rejected_spans) == (200, 2)
    assert "not bound to" in partial.error_message
    assert "does not allow rewards" in partial.error_message
    with Store.open(f"http://reader:{made['query']}@127.0.0.1:{up.sql}") as store:
        sql = "SELECT SpanId, RolloutId, Attempt FROM otel.spans ORDER BY SpanId"
        assert store.query(sql).rows() == [
            ("0000000000000001", "abc", "1"),
            ("0000000000000002", "abc", "1"),
        ]


def test_keys_are_not_printed(keyed: Any, request_of: Any, capfd: Any) -> None:
    up, made, _ = keyed
    post(up.otlp, b"\xff", made["ingest"])
    post(up.otlp, request_of((1, 1)), "lt_wrong")
    url = f"/?query=SELECT+no&user=x&password={made['admin']}"
    assert made["admin"] not in http_requests.ask(up.sql, "GET", url).text
    up.stop()
    printed = "".join(capfd.readouterr())
    assert not any(key in printed for key in (*made.values(), "lt_wrong"))


def test_both_ports_speak_tls(tmp_path: Path, start: Any, request_of: Any) -> None:
    certificate, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(private), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    files = ("--tls-cert", str(certificate), "--tls-key", str(private))
    up = start(tmp_path / "store", 0, 0, *files)
    with clickhouse_connect.get_client(
        host="127.0.0.1", port=up.sql, interface="https", ca_cert=str(certificate)
    ) as client:
        assert client.query("SELECT 1").result_rows == [(1,)]
    done = ltrain("up", "--dir", str(tmp_path / "s"), *FREE, *files[:2], "--tls-key", "/dev/null")
    assert done.returncode == 1
    assert "TLS cannot be served" in done.stderr
