"""`ltrain worker` and `ltrain rollout --to` as users run them, with a gateway between them."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.fake_vllm import FakeVllm
from tests.train.remote.cluster import AGENTS, LTRAIN, WAIT, Cluster, Program

from ltrain_collector.access import AttemptKey, Kind, sign_admin, sign_kind
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_train.gateway import (
    GatewayConnection,
    GatewayRefused,
)
from ltrain_train.policy import Policies
from ltrain_train.store import home_secret


@pytest.fixture
def cluster(tmp_path: Path, outside: Any) -> Iterator[Cluster]:
    with ExitStack() as stack:
        upstream = stack.enter_context(FakeVllm()).url
        cluster = Cluster(stack, tmp_path, upstream, outside.url)
        cluster.start_gateway()
        yield cluster


@pytest.fixture
def tasks(tmp_path: Path) -> Callable[..., Path]:
    def write(count: int = 4, **more: object) -> Path:
        path = tmp_path / "tasks.jsonl"
        rows = [{"id": str(number), "input": f"w{number}", **more} for number in range(count)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def finish(program: Program) -> list[dict[str, Any]]:
    assert program.process.wait(2 * WAIT) in (0, 1), program.output
    output = program.output
    return list(json.loads(output[output.index("{") :])["rollouts"])


def test_workers_elsewhere_run_the_rollouts(
    cluster: Cluster, tasks: Callable[..., Path], outside: Any
) -> None:
    for name in ("first", "second"):
        cluster.worker(name)
    rollouts = finish(
        cluster.rollout(tasks(8), "--rollouts-per-task", "2", "--reward", "scores:one")
    )
    assert Counter(each["outcome"] for each in rollouts) == {"ok": 16}
    assert {each["rewards"]["reward"] for each in rollouts} == {1.0}
    assert {each["llm_calls"] for each in rollouts} == {1}
    closed = outside.wait_spans(16, WAIT, name="ltrain.rollout")
    assert len({span.attributes["ltrain.rollout.id"] for span in closed}) == len(closed) == 16
    solved = outside.wait_spans(16, WAIT, name="ltrain.solve")
    assert {span.trace for span in solved} == {span.trace for span in closed}


@pytest.mark.nightly
def test_a_worker_runs_a_command(
    cluster: Cluster, tasks: Callable[..., Path], outside: Any
) -> None:
    cluster.worker("shell", "--", "sh", "-c", 'echo "$OPENAI_MODEL<$LTRAIN_WORKER_KEY>"')
    rollouts = finish(cluster.rollout(tasks(2)))
    assert Counter(each["outcome"] for each in rollouts) == {"ok": 2}
    closed = outside.wait_spans(2, WAIT, name="ltrain.rollout")
    results = {span.attributes["ltrain.rollout.result"] for span in closed}
    assert results == {'"policy<>"'}, "an agent must not see the worker's key"


@pytest.mark.nightly
def test_a_worker_reads_the_prompts_of_the_runners_home(
    cluster: Cluster, tasks: Callable[..., Path], outside: Any, tmp_path: Path
) -> None:
    (tmp_path / "greeting.txt").write_text("Hello {name}.")
    Policies(cluster.home).register("greeting", tmp_path / "greeting.txt")
    code = "import ltrain; p = ltrain.prompt('greeting'); print([p, p.version])"
    cluster.worker("shell", "--", "python", "-c", code)
    rollouts = finish(cluster.rollout(tasks(1)))
    assert [each["outcome"] for each in rollouts] == ["ok"]
    (closed,) = outside.wait_spans(1, WAIT, name="ltrain.rollout")
    assert closed.attributes["ltrain.rollout.result"] == json.dumps("['Hello {name}.', 0]")
    (dispatch,) = outside.wait_spans(1, WAIT, name="ltrain.rollout.dispatch")
    assert dispatch.attributes["ltrain.prompt.greeting"] == 0


@pytest.mark.nightly
def test_the_rollouts_of_a_killed_worker_are_tried_elsewhere(
    cluster: Cluster, tasks: Callable[..., Path], outside: Any
) -> None:
    lost = cluster.worker("lost", "--", "sleep", "60")
    program = cluster.rollout(tasks(2), "--timeout", "300")
    assert outside.wait_spans(2, WAIT, name="ltrain.rollout.dispatch")
    time.sleep(1)  # so that the worker has taken them; the test holds if it has not
    lost.end(signal.SIGKILL)
    cluster.worker("other")
    rollouts = finish(program)
    assert Counter(each["outcome"] for each in rollouts) == {"ok": 2}
    closed = outside.wait_spans(4, WAIT, name="ltrain.rollout")
    outcomes = Counter(span.attributes["ltrain.rollout.outcome"] for span in closed)
    assert outcomes == {"ok": 2, "infra": 2}


@pytest.mark.nightly
def test_a_stopped_worker_returns_its_leases_at_once(
    cluster: Cluster, tasks: Callable[..., Path], outside: Any
) -> None:
    stopped = cluster.worker("stopped", "--", "sleep", "60")
    program = cluster.rollout(tasks(1), "--timeout", "300")
    assert outside.wait_spans(1, WAIT, name="ltrain.rollout.dispatch")
    time.sleep(1)  # as above
    assert stopped.end(signal.SIGINT) == 0
    assert "are tried elsewhere" in stopped.output
    cluster.worker("other")
    (rollout,) = finish(program)
    assert rollout["outcome"] == "ok"


@pytest.mark.nightly
def test_a_worker_ends_an_attempt_at_its_time_limit(
    cluster: Cluster, tasks: Callable[..., Path]
) -> None:
    cluster.worker("slow", "--", "sleep", "600")
    (rollout,) = finish(cluster.rollout(tasks(1), "--timeout", "3"))
    assert rollout["outcome"] == "timeout"


def test_a_gateway_that_is_stopped_and_starts_again_neither_loses_nor_doubles_a_rollout(
    cluster: Cluster, tasks: Callable[..., Path], outside: Any
) -> None:
    cluster.worker("patient")
    path = tasks(6, sleeps=1)
    program = cluster.rollout(path, "--agent-sees", "sleeps", "--agent-sees", "input")
    assert outside.wait_spans(1, WAIT, name="ltrain.rollout")
    cluster.gateway.end(signal.SIGTERM)  # test_kills kills it
    cluster.start_gateway()
    rollouts = finish(program)
    assert Counter(each["outcome"] for each in rollouts) == {"ok": 6}
    assert len({each["rollout"] for each in rollouts}) == 6
    closed = outside.wait_spans(6, WAIT, name="ltrain.rollout")
    good = [span for span in closed if span.attributes["ltrain.rollout.outcome"] == "ok"]
    assert len(good) == len({span.attributes["ltrain.rollout.id"] for span in good}) == 6


@pytest.mark.nightly
def test_a_worker_and_a_runner_speak_tls(
    tmp_path: Path, tasks: Callable[..., Path], outside: Any
) -> None:
    public, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names)
    paths = ("-keyout", str(private), "-out", str(public))
    subprocess.run(["openssl", *made, *paths], check=True, capture_output=True)
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path, stack.enter_context(FakeVllm()).url, outside.url)
        cluster.options = ("--tls-cert", str(public), "--tls-key", str(private))
        cluster.start_gateway()
        strange = cluster.start("strange", "rollout", tasks(1), "--to", cluster.url)
        assert strange.process.wait(WAIT) == 1
        assert "is not trusted" in " ".join(strange.output.split())
        cluster.settings = {"SSL_CERT_FILE": str(public)}
        cluster.worker("worker")
        (rollout,) = finish(cluster.rollout(tasks(1)))
    assert (cluster.url[:8], rollout["outcome"], rollout["llm_calls"]) == ("https://", "ok", 1)


@pytest.mark.nightly
def test_a_result_that_some_parsers_do_not_read_arrives(
    cluster: Cluster, tasks: Callable[..., Path]
) -> None:
    cluster.worker("odd", "--agent", "plain:odd", "--workers", "1")
    rollouts = finish(cluster.rollout(tasks(2)))
    assert Counter(each["outcome"] for each in rollouts) == {"ok": 2}


@pytest.mark.nightly
def test_the_spans_of_a_killed_command_are_sent(
    cluster: Cluster, tasks: Callable[..., Path], outside: Any
) -> None:
    script = (
        "import os; from opentelemetry import trace; "
        "trace.get_tracer('agent').start_span('last words').end(); os.kill(os.getpid(), 9)"
    )
    cluster.worker("killed", "--workers", "1", "--", sys.executable, "-c", script)
    (rollout,) = finish(cluster.rollout(tasks(1)))
    assert rollout["outcome"] != "ok"
    attempts = outside.wait_spans(rollout["attempt"], WAIT, name="ltrain.rollout")
    assert len(outside.wait_spans(len(attempts), WAIT, name="last words")) == len(attempts)


def test_a_server_that_is_no_gateway_ends_the_worker_with_a_sentence(cluster: Cluster) -> None:
    with FakeVllm() as other:
        options = ("--key", "k", "--agent", "plain:solve", "--workers", "1")
        program = cluster.start("lost", "worker", other.url, *options)
        assert program.process.wait(WAIT) == 1
    output = " ".join(program.output.split())
    assert "answers /worker/heartbeat in another form" in output
    assert "Install the same version of ltrain" in output and "Traceback" not in output


def test_an_answer_without_an_object_is_no_gateway_s() -> None:
    with FakeVllm() as other, closing(GatewayConnection(other.url)) as connection:
        other.model_list = "<html>"
        with pytest.raises(GatewayRefused, match=r"<html>.*which no gateway answers"):
            connection.request("GET", "/v1/models", "key")


def test_a_runner_of_another_version_is_refused(cluster: Cluster) -> None:
    key = sign_admin(home_secret(cluster.home))
    status, text = cluster.post("/admin/leases/offer", key, {"runner": "r", "version": "0.0.9"})
    assert (status, "This runner has ltrain 0.0.9" in text) == (409, True)


def test_keys_of_another_kind_are_refused(cluster: Cluster) -> None:
    secret = home_secret(cluster.home)
    identity = Identity(run="r", rollout="a", attempt=1)
    claims = AttemptKey(identity=identity, policy="policy", expires=Deadline.after(60))
    worker, admin = sign_kind(secret, Kind.WORKER, 60), sign_admin(secret)
    for path, keys in (
        ("/worker/take", (admin, claims.sign(secret), "none")),
        ("/admin/leases/offer", (worker, claims.sign(secret))),
        ("/admin/policies/policy/current", (worker,)),
        ("/worker/take", (sign_kind(secret, Kind.WORKER, -10),)),
    ):
        for key in keys:
            status, text = cluster.post(path, key, {})
            assert (status, "key" in text) == (401, True), (path, text)


def test_a_worker_of_another_version_is_refused(cluster: Cluster) -> None:
    key = sign_kind(home_secret(cluster.home), Kind.WORKER, 60)
    take = {"worker": "w", "version": "0.0.9", "slots": 1, "free": 1}
    status, text = cluster.post("/worker/take", key, take)
    assert (status, "This worker has ltrain 0.0.9" in text) == (409, True)
    status, text = cluster.post("/worker/take", key, take | {"slots": 10**9})
    assert (status, "slots: Input should be less than" in text) == (400, True)
    status, text = cluster.post("/worker/take", key, {"slots": 0})
    assert (status, "worker: Field required" in text) == (400, True)


def test_a_bad_key_ends_the_worker_with_a_sentence(cluster: Cluster) -> None:
    program = cluster.start(
        "bad", "worker", cluster.url, "--key", "nonsense", "--agent", "plain:solve"
    )
    assert program.process.wait(WAIT) == 1
    output = " ".join(program.output.split())
    assert "This gateway has not signed this worker key" in output
    assert "`ltrain worker-key` prints one" in output and "worker ready" not in output
    assert "Traceback" not in program.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["worker", "http://127.0.0.1:9", "--agent", "a:b"], "A worker needs a key"),
        (["worker", "http://127.0.0.1:9", "--key", "k"], "Name the agent exactly once"),
        (["rollout", "tasks.jsonl", "--to", "u", "--agent", "a:b"], "Name the agent exactly once"),
        (["rollout", "tasks.jsonl", "--to", "u", "--gateway", "v"], "Remove --gateway"),
    ],
)
def test_a_misused_command_says_so(arguments: Sequence[str], sentence: str) -> None:
    ended = subprocess.run([*LTRAIN, *arguments], capture_output=True, text=True)
    assert ended.returncode == 2
    assert sentence in " ".join(ended.stderr.replace("│", "").split())


def test_a_key_is_printed_where_the_gateway_runs(cluster: Cluster) -> None:
    command = [*LTRAIN, "worker-key", "--days", "1"]
    key = subprocess.run(command, env=cluster.environ, capture_output=True, text=True).stdout
    take = {"worker": "w", "version": "0.0.9", "slots": 1, "free": 1}
    assert cluster.post("/worker/take", key.strip(), take)[0] == 409


def test_without_a_worker_a_rollout_says_how_to_start_one(
    cluster: Cluster, tasks: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "from ltrain_train.rollout import runner; runner.START_TIMEOUT = 1.0; "
        "from ltrain.cli import main; main()"
    )
    command = [sys.executable, "-c", script, "rollout", str(tasks(1)), "--to", cluster.url]
    ended = subprocess.run(
        command, env=cluster.environ, cwd=AGENTS, capture_output=True, text=True, timeout=WAIT
    )
    assert ended.returncode == 1
    assert "`ltrain worker-key` prints the key" in " ".join(ended.stderr.replace("│", "").split())
