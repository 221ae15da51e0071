"""`ltrain serve` as a user runs it, with a fake program in place of vLLM's Python."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fake_vllm import FakeVllm
from tests.fork_server import kill, ltrain_command
from tests.train.gateway.stage import spans_on_disk

from ltrain_collector.access import AttemptKey, Keys, Role
from ltrain_instrument.clock import Deadline
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.client import GatewayClient
from ltrain_train.gateway.connection import GatewayUnreachable, PolicyServerAway
from ltrain_train.gateway.serving.host import UPSTREAM_POLL
from ltrain_train.gateway.serving.upstream import HEALTH_TIMEOUT
from ltrain_train.policy import Policies
from ltrain_train.processes import free_port
from ltrain_train.runs import retry_load
from ltrain_train.store import home_secret
from ltrain_transforms.recipe import Serve, Train

FAKE_VLLM = Path(__file__).parents[2] / "fake_vllm.py"
WAIT = 60.0
"""Seconds to wait for events that take two on an idle machine."""


def environment(home: Path, python: Path | str) -> dict[str, str]:
    settings = {"LTRAIN_HOME": str(home), "LTRAIN_VLLM_PYTHON": str(python)}
    nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "PYTHONUNBUFFERED": "1"}
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")}
    return {**inherited, **settings, **nowhere}


def program(path: Path, script: str) -> Path:
    """Write an executable that does `does` in place of `python -m vllm…`."""
    path.write_text(f'#!/bin/sh\n[ "$1" = -I ] && exit 0\n{script}\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return program(tmp_path / "python", f'exec {sys.executable} {FAKE_VLLM} "$@"')


class Served:
    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process, self._output = process, output

    @property
    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    def line(self, beginning: str) -> str:
        """Wait for a line that begins so."""
        until = time.monotonic() + WAIT
        while True:
            matches = [line for line in self.lines if line.startswith(beginning)]
            if matches:
                return matches[-1]
            assert self.process.poll() is None and time.monotonic() < until, self.lines
            time.sleep(0.05)

    @property
    def url(self) -> str:
        return self.line("ltrain: gateway ready at ").split()[4].removesuffix("/v1,")

    def ask(self, content: str, **more: Any) -> httpx.Response:
        message = {"role": "user", "content": content}
        body = {"model": "policy", "messages": [message], **more}
        url = f"{self.url}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=WAIT, trust_env=False)


WATCHFUL = """
from ltrain.cli import main
from ltrain_train.gateway.serving import host
host.POLL = 0.001
main()
"""
"""The command line of Python, with a gateway that checks vLLM continuously."""
SLOW_TO_SETTLE = """
import time
from ltrain.cli import main
from ltrain_train.gateway import server
server._tune_interpreter = lambda: time.sleep(0.5)
main()
"""
"""The same, with a machine that takes half a second to search a gateway's objects."""


@contextmanager
def serving(
    home: Path, python: Path | str, *arguments: str, command: Sequence[str] = ()
) -> Iterator[Served]:
    output = home.with_suffix(".out")
    with output.open("wb") as writing:
        process = subprocess.Popen(
            [*(command or [ltrain_command()]), "serve", "--port", "0", *arguments],
            stdout=writing,
            stderr=subprocess.STDOUT,
            env=environment(home, python),
        )
        try:
            yield Served(process, output)
        finally:
            kill(process)
            process.wait()


def refusal(home: Path, python: Path | str, *arguments: str, status: int = 1) -> str:
    """Run `ltrain serve` until it fails and return its error."""
    ended = subprocess.run(
        [ltrain_command(), "serve", *arguments],
        env=environment(home, python),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert ended.returncode == status, ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "model")


def test_what_begins_after_a_ready_answer_is_younger_than_the_gateway(
    tmp_path: Path, model: Path, python: Path
) -> None:
    """Else the rollouts that wait for a gateway would seem to have met its restart."""
    home, port = tmp_path / "home", free_port()
    slow = (sys.executable, "-c", SLOW_TO_SETTLE)
    with serving(home, python, str(model), "--port", str(port), command=slow):
        client = GatewayClient(f"http://127.0.0.1:{port}", home_secret(home))
        with closing(client):
            until = time.monotonic() + WAIT
            while not client.is_ready():
                assert time.monotonic() < until
            began = time.monotonic()
            identity = Identity(run="r", task="t", rollout="a", attempt=1, mode="train")
            key = AttemptKey(identity=identity, policy="policy", expires=Deadline.after(60))
            time.sleep(1)
            since = time.monotonic() - began
            counts = client.close_attempt(identity, key.sign(home_secret(home)))
    assert counts.uptime >= since


def test_serve_restarts_vllm_with_the_current_version_and_stops(
    tmp_path: Path, model: Path, python: Path, write_model: Callable[..., Path]
) -> None:
    home = tmp_path / "home"
    options = ("--dtype", "bfloat16", "--", "--seed", "7")
    with serving(home, python, str(model), *options) as served:
        assert served.ask("w3").json()["choices"][0]["message"]["content"] == "w3"
        policies = Policies(home)
        new = write_model(tmp_path / "new", fill=1)
        policies.register_files("policy", new, parent=0, dataset="d", recipe="r")
        client = GatewayClient(served.url, home_secret(home))
        client.load("policy", 1)
        assert served.ask("die").status_code == 503
        served.line("ltrain: vLLM died by signal SIGKILL; calls wait while it starts again")
        assert served.ask("w4").status_code == 200
        assert client.max_model_len() == 4096
        served.line("ltrain: vLLM runs again with policy v1")
        client.load("policy", 1)
        client.close()
        assert "loaded" not in "\n".join(served.lines)  # it was started with this version
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(WAIT) == 0
    first, second = (home / "logs" / "vllm.log").read_text().splitlines()
    v0, v1 = (str(policies.path("policy", version)) for version in (0, 1))
    program, _, command = first.partition(" ")
    assert program.endswith("/ltrain_train/gateway/serving/in_vllm/vllm_process.py")
    assert command.startswith(f"serve {v0} --served-model-name policy ")
    assert first.endswith(
        " --dtype bfloat16 --max-model-len auto --max-num-seqs 64 --block-size 32"
        " --enforce-eager --worker-extension-cls staged_weights.StagedWeights"
        " --generation-config vllm --logprobs-mode processed_logprobs"
        ' --structured-outputs-config {"backend": "xgrammar"} --allowed-media-domains'
        " none.invalid --enable-scale-out"
        " --disable-uvicorn-access-log --seed 7"
    )
    assert v1 in second.split()
    assert not _anyone_runs(str(home))


def test_a_version_that_is_not_current_survives_the_death_of_vllm(
    tmp_path: Path, model: Path, python: Path, write_model: Callable[..., Path]
) -> None:
    home = tmp_path / "home"
    with serving(home, python, str(model)) as served:
        client = GatewayClient(served.url, home_secret(home))
        policies = Policies(home)
        new = write_model(tmp_path / "new", fill=1)
        policies.register_files("policy", new, parent=0, dataset="d", recipe="r")
        client.load("policy", 1, current=False)
        assert served.ask("die").status_code == 503
        served.line("ltrain: vLLM runs again with policy v1")
        assert served.ask("weights").json()["choices"][0]["message"]["content"] == "w1"
        client.close()
    assert policies.current("policy") == 0


@pytest.mark.parametrize("method", ["stage_weights", "staged", "swap_weights"])
def test_a_vllm_that_dies_in_a_publication_costs_no_call_and_serves_no_mixture(
    tmp_path: Path, model: Path, write_model: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    dies, home, published = tmp_path / "dies", tmp_path / "home", threading.Event()
    begun = threading.Barrier(3)
    monkeypatch.setenv("FAKE_VLLM_DIES", str(dies))
    python = program(tmp_path / "python", f'exec {sys.executable} {FAKE_VLLM} "$@"')

    def ask_on(served: Served) -> list[str]:
        answers = [served.ask("weights").json()["choices"][0]["message"]["content"]]
        begun.wait()
        while not published.is_set():
            answer = served.ask("weights")
            if answer.status_code == 503:  # it was at vLLM at the death; the client repeats it
                answer = served.ask("weights")
            assert answer.status_code == 200, answer.text
            answers.append(answer.json()["choices"][0]["message"]["content"])
        return answers

    with serving(home, python, str(model)) as served, ThreadPoolExecutor(2) as pool:
        policies, client = Policies(home), GatewayClient(served.url, home_secret(home))
        new = write_model(tmp_path / "new", fill=1)
        policies.register_files("policy", new, parent=0, dataset="d", recipe="r")
        asking = [pool.submit(ask_on, served) for _ in range(2)]
        begun.wait()
        dies.write_text(method)
        try:
            with pytest.raises(PolicyServerAway):
                client.load("policy", 1)
            assert policies.current("policy") == 0
            retry_load(lambda: client.load("policy", 1))
            assert served.ask("weights").json()["choices"][0]["message"]["content"] == "w1"
            time.sleep(0.2)
        finally:
            published.set()
            client.close()
        for answers in (each.result() for each in asking):
            changes = [text for text, _ in groupby(answers)]
            assert changes == ["w0", "w1"]
        assert policies.current("policy") == 1
        assert served.line("ltrain: vLLM died") in served.lines
        order = [line for line in served.lines if "vLLM runs again" in line or "serving" in line]
        assert order == [
            "ltrain: vLLM runs again with policy v0",
            "ltrain: serving policy v1, previously v0",
        ]


def test_the_example_of_the_help_and_arguments_after_two_dashes_work(
    tmp_path: Path, model: Path, python: Path
) -> None:
    home, log = tmp_path / "home", tmp_path / "home" / "logs" / "vllm.log"
    text = subprocess.run(
        [ltrain_command(), "serve", "--help"],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    example = next(line for line in text.splitlines() if "Example: ltrain serve" in line)
    flags = example.strip(" │").partition(" -- ")[2].split()
    assert flags == ["--max-num-batched-tokens", "4096"]
    with serving(home, python, str(model), "--", *flags) as served:
        assert served.url
    assert log.read_text().splitlines()[-1].endswith(" ".join(flags))
    with serving(home, python, "--policy", "policy", "--", "--seed", "7") as served:
        assert served.url
    assert log.read_text().splitlines()[-1].endswith(" --seed 7")
    more = refusal(home, python, str(model), "another", status=2)
    assert "unexpected extra argument" in more
    alone = refusal(home, python, str(model), "--replica", "http://127.0.0.1:9", status=2)
    assert "servers behind a router: --upstream is its URL" in " ".join(
        alone.replace("│", " ").split()
    )


def test_a_model_without_a_chat_template_is_named_at_the_start(
    tmp_path: Path, model: Path, python: Path
) -> None:
    home = tmp_path / "home"
    with serving(home, python, str(model)) as served:
        served.line("ltrain: The model of policy 'policy' has no chat template")
    with serving(home, python, "--policy", "policy", "--", "--chat-template=x") as served:
        assert served.url
        assert not any("has no chat template" in line for line in served.lines)


def test_a_template_without_tools_is_named_once_when_a_request_names_tools(
    tmp_path: Path, model: Path, python: Path
) -> None:
    (model / "chat_template.jinja").write_text("{{ messages }}")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    with serving(tmp_path / "home", python, str(model)) as served:
        assert served.ask("w3").status_code == 200
        assert not any("renders no" in line for line in served.lines)
        assert [served.ask("w3", tools=tools).status_code for _ in range(2)] == [200, 200]
        served.line("ltrain: The chat template of policy 'policy' renders no tools")
        assert sum("renders no tools" in line for line in served.lines) == 1
    named = ("--policy", "policy", "--", "--chat-template={{ tools }}")
    with serving(tmp_path / "home", python, *named) as served:
        assert served.ask("w3", tools=tools).status_code == 200
        assert not any("renders no" in line for line in served.lines)


def test_a_version_that_becomes_current_while_vllm_starts_is_served_under_its_own_number(
    tmp_path: Path, model: Path, write_model: Callable[..., Path]
) -> None:
    home, go = tmp_path / "home", tmp_path / "go"
    policies = Policies(home)
    policies.register("policy", model)
    new = write_model(tmp_path / "new", fill=1)
    policies.register_files("policy", new, parent=0, dataset="d", recipe="r")
    wait = f"while [ ! -e {go} ]; do sleep 0.1; done; export FAKE_VLLM_RELOAD=0.01"
    python = program(tmp_path / "python", f'{wait}; exec {sys.executable} {FAKE_VLLM} "$@"')
    with serving(home, python, str(model)) as served:
        served.line("ltrain: starting vLLM")
        time.sleep(1)  # it has read the current version by now
        policies.promote("policy", 1)
        go.touch()
        assert served.line("ltrain: gateway ready").split(", ")[1] == "policy policy v1"
        started, *loaded = (home / "logs" / "vllm.log").read_text().splitlines()
        assert str(policies.path("policy", 0)) in started.split()
        assert loaded == ["reloading"]


def test_a_killed_gateway_still_refuses_closed_attempts_when_it_is_back(
    tmp_path: Path, model: Path, python: Path
) -> None:
    home = tmp_path / "home"
    identity = Identity(run="demo", rollout="abc", attempt=1, mode="train")
    claims = AttemptKey(
        identity=identity, policy="policy", sampling={}, expires=Deadline.after(600)
    )
    answers = []
    for _ in range(2):
        with serving(home, python, str(model), "--policy", "policy") as served:
            secret = home_secret(home)
            key = claims.sign(secret)
            url = f"{served.url}/rollout/abc/attempt/1/v1/chat/completions"
            body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}
            headers = {"authorization": f"Bearer {key}"}
            call = httpx.post(url, json=body, headers=headers, timeout=WAIT, trust_env=False)
            client = GatewayClient(served.url, secret)
            answers.append((call.status_code, client.close_attempt(identity, key)))
            client.close()
            kill(served.process)
            served.process.wait()
    (first, counts), (again, repeated) = answers
    assert (first, again, counts.llm_calls) == (200, 403, 1)
    assert repeated == counts


def test_a_call_of_a_vllm_that_hangs_is_left_unanswered_by_a_close(
    tmp_path: Path, model: Path, python: Path
) -> None:
    home = tmp_path / "home"
    identity = Identity(run="demo", rollout="abc", attempt=1, mode="train")
    claims = AttemptKey(identity=identity, policy="policy", expires=Deadline.after(600))
    with serving(home, python, str(model), "--policy", "policy") as served:
        secret = home_secret(home)
        key = claims.sign(secret)
        url = f"{served.url}/rollout/abc/attempt/1/v1/chat/completions"
        body = {"model": "policy", "messages": [{"role": "user", "content": "stuck"}]}
        headers = {"authorization": f"Bearer {key}"}
        (vllm,) = _pids_of(str(home))
        os.kill(vllm, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool, closing(GatewayClient(served.url, secret)) as client:
            sent: dict[str, Any] = {"json": body, "headers": headers, "trust_env": False}
            call = pool.submit(lambda: httpx.post(url, timeout=WAIT, **sent))
            time.sleep(UPSTREAM_POLL + HEALTH_TIMEOUT + 3)
            counts = client.close_attempt(identity, key)
            assert call.result().status_code == 403
        os.kill(vllm, signal.SIGCONT)
    assert (counts.llm_calls, counts.failures) == (0, 1)


def test_a_vllm_that_keeps_dying_ends_the_gateway(
    tmp_path: Path, model: Path, python: Path
) -> None:
    home = tmp_path / "home"
    with serving(home, python, str(model)) as served:
        for _ in range(3):
            assert served.ask("die").status_code == 503
        assert served.process.wait(WAIT) == 1
    assert any(line.startswith("ltrain: vLLM ended by signal SIGKILL") for line in served.lines)


@pytest.mark.parametrize("starts", [0, 1])
def test_serve_stops_while_vllm_starts(tmp_path: Path, model: Path, starts: int) -> None:
    home, count = tmp_path / "home", tmp_path / "count"
    fake = f'exec {sys.executable} {FAKE_VLLM} "$@"'
    script = f'echo >> {count}; [ "$(wc -l < {count})" -gt {starts} ] && exec sleep 600 || {fake}'
    with serving(home, program(tmp_path / "python", script), str(model)) as served:
        if starts:
            assert served.ask("die").status_code == 503
        until = time.monotonic() + WAIT
        while not count.exists() or len(count.read_text()) <= starts:
            assert time.monotonic() < until
            time.sleep(0.05)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(WAIT) == 0
    assert "Traceback" not in "\n".join(served.lines)


def test_a_stream_that_a_stop_cuts_is_recorded_and_ends_without_a_traceback(
    tmp_path: Path, model: Path, python: Path
) -> None:
    home = tmp_path / "home"
    with serving(home, python, str(model)) as served:
        words = " ".join(f"w{number}" for number in range(1, 60))
        body = {"model": "policy", "messages": [{"role": "user", "content": f"slow {words}"}]}
        url = f"{served.url}/v1/chat/completions"
        with (
            httpx.stream("POST", url, json={**body, "stream": True}, timeout=WAIT) as response,
            pytest.raises(httpx.RemoteProtocolError),
        ):
            for number, _ in enumerate(response.iter_lines()):
                if number == 2:
                    served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(WAIT) == 0
    assert "Traceback" not in "\n".join(served.lines)
    spans = b"".join(each.read_bytes() for each in (home / "services" / "spool").glob("*.otlp"))
    assert b"chat policy" in spans and b"w1" in spans


def test_a_stop_of_vllm_by_the_gateway_is_not_counted_as_a_death(
    tmp_path: Path, model: Path
) -> None:
    home, count = tmp_path / "home", tmp_path / "count"
    script = f'echo >> {count}; exec {sys.executable} {FAKE_VLLM} "$@"'
    python = program(tmp_path / "python", script)
    for starts in range(1, 4):
        with serving(home, python, str(model), command=(sys.executable, "-c", WATCHFUL)) as served:
            assert served.url
            served.process.send_signal(signal.SIGINT)
            assert served.process.wait(WAIT) == 0
        assert len(count.read_text()) == starts
        assert "vLLM died" not in "\n".join(served.lines)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_vllm_never_outlives_the_gateway(
    tmp_path: Path, model: Path, python: Path, number: signal.Signals
) -> None:
    home = tmp_path / "home"
    with serving(home, python, str(model)) as served:
        assert served.url
        served.process.send_signal(number)
        served.process.wait(WAIT)
    until = time.monotonic() + WAIT
    while _anyone_runs(str(home)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_policy_continues_with_its_current_version(
    tmp_path: Path, model: Path, vllm: Any, write_model: Callable[..., Path]
) -> None:
    home = tmp_path / "home"
    policies = Policies(home)
    policies.register("policy", model)
    new = write_model(tmp_path / "new", fill=1)
    policies.register_files("policy", new, parent=0, dataset="d", recipe="r")
    policies.promote("policy", 1)
    with serving(home, Path("none"), str(model), "--upstream", vllm.url) as served:
        ready = served.line("ltrain: gateway ready")
        assert ready.endswith(", policy policy v1, 4,096 tokens of prompt and response at most")
        assert served.lines[0].startswith("ltrain: policy policy continues with v1;")
        assert vllm.weights == "policy/v1"


def test_the_conversation_of_an_attempt_goes_on_after_its_gateway_was_killed(
    tmp_path: Path, model: Path, vllm: Any
) -> None:
    home = tmp_path / "home"
    identity = Identity(run="r", task="t", rollout="a", attempt=1, mode="train")
    claims = AttemptKey(identity=identity, policy="policy", expires=Deadline.after(600))
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]

    def ask(served: Served, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": "policy", "messages": messages, "tools": tools}
        key = claims.sign(home_secret(home))
        url = f"{served.url}/rollout/a/attempt/1/v1/chat/completions"
        headers = {"authorization": f"Bearer {key}"}
        answer = httpx.post(url, json=body, headers=headers, timeout=WAIT, trust_env=False)
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return {"role": "assistant", **message}

    messages: list[dict[str, Any]] = [{"role": "user", "content": "call w1"}]
    command = (str(model), "--upstream", vllm.url)
    with serving(home, Path("none"), *command) as served:  # which kills it at the end
        messages.append(ask(served, messages))
        file = home / "gateway" / "attempts" / "conversations.jsonl"
        until = time.monotonic() + WAIT
        while not (file.exists() and b'"link"' in file.read_bytes()):
            assert time.monotonic() < until
            time.sleep(0.02)
    for call in messages[1]["tool_calls"]:
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "sunny"})
    with serving(home, Path("none"), *command) as served:
        ask(served, messages)
    spans = spans_on_disk(home)
    names = ["chat policy", "execute_tool weather", "execute_tool weather", "chat policy"]
    assert [span["name"] for span in spans] == names
    assert len({span["trace"] for span in spans}) == 1


def test_a_wrong_model_directory(tmp_path: Path, python: Path) -> None:
    port = ("--port", "0")
    assert "There is no model directory" in refusal(tmp_path, python, str(tmp_path / "no"), *port)
    assert "has no config.json" in refusal(tmp_path, python, str(tmp_path), *port)


def test_no_model_and_no_policy(tmp_path: Path, python: Path) -> None:
    assert "Unknown policy 'policy'. Policies: none yet; `ltrain serve MODEL` makes one" in (
        refusal(tmp_path, python, "--port", "0")
    )


def test_a_port_that_is_taken(tmp_path: Path, model: Path, python: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        lines = refusal(tmp_path, python, str(model), "--port", port)
    assert f"Port {port} of 127.0.0.1 cannot be used: Address already in use" in lines


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of 127.0.0.1 that no public authority signed, and its key."""
    files = folder / "cert.pem", folder / "key.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names)
    paths = ("-keyout", str(files[1]), "-out", str(files[0]))
    subprocess.run(["openssl", *made, *paths], check=True, capture_output=True)
    return files


def test_other_machines_need_a_key(tmp_path: Path, vllm: Any) -> None:
    home = tmp_path / "home"
    upstream = ("--upstream", vllm.url, "--port", "0", "--host", "0.0.0.0")
    lines = " ".join(refusal(home, "none", *upstream).split())
    assert "A gateway without keys is served only on this machine, not on '0.0.0.0'" in lines
    assert f"`ltrain key make ingest --dir {home / 'store'}`" in lines
    made, _ = Keys(home / "store").make_key(Role.INGEST)
    with serving(home, "none", *upstream[:2], *upstream[4:]) as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        models = f"{url}/v1/models"
        assert httpx.get(models, trust_env=False).status_code == 401
        key = {"authorization": f"Bearer {made}"}
        assert httpx.get(models, headers=key, trust_env=False).status_code == 200
        named = {**key, "host": "trainer"}
        assert httpx.get(models, headers=named, trust_env=False).status_code == 403
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200


def test_the_gateway_speaks_tls(tmp_path: Path, vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    public, private = certificate(tmp_path)
    files = ("--tls-cert", str(public), "--tls-key", str(private))
    home, upstream = tmp_path / "home", ("--upstream", vllm.url, "--policy", "policy")
    with serving(home, "none", *upstream, *files) as served:
        assert served.url.startswith("https://127.0.0.1:")
        secret = home_secret(home)
        with closing(GatewayClient(served.url, secret)) as stranger:
            assert not stranger.is_running()
            with pytest.raises(GatewayUnreachable, match=r"is not trusted.*Set SSL_CERT_FILE"):
                stranger.current_version("policy")
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        with closing(GatewayClient(served.url, secret)) as client:
            assert client.is_running() and client.served_policies() == ["policy"]
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(BadSetting, match=r"none\.pem' cannot be read"):
        GatewayClient("https://127.0.0.1:9", secret)


def test_a_wrong_certificate_is_refused_before_a_server_is_used(tmp_path: Path) -> None:
    arguments = ("--upstream", "http://127.0.0.1:9", "--port", "0", "--tls-cert", "/dev/null")
    assert "must be used together" in refusal(tmp_path, "none", *arguments, status=2)
    lines = refusal(tmp_path, "none", *arguments, "--tls-key", "/dev/null")
    assert "TLS cannot be served from /dev/null" in lines


def test_a_python_that_is_missing_or_has_no_vllm_is_refused(tmp_path: Path, model: Path) -> None:
    lines = refusal(tmp_path, "no/python", str(model), "--port", "0")
    assert "There is no Python at 'no/python'" in lines and "LTRAIN_VLLM_PYTHON" in lines
    lines = refusal(tmp_path, sys.executable, str(model), "--port", "0")
    assert f"The Python at '{sys.executable}' has no vLLM" in lines


def test_a_vllm_that_dies_at_its_start_is_reported(tmp_path: Path, model: Path) -> None:
    log = (
        "(APIServer pid=1) WARNING 11-21 09:12:46 [a.py:2] perhaps an OSError: [Errno 24]",
        "(Worker pid=2) ERROR 11-21 09:14:11 [b.py:1063] RuntimeError: head_dim=16 is too small",
        *(["(APIServer pid=1) INFO 11-21 09:14:12 [c.py:3] shutting down"] * 15),
        "ValueError: Engine core initialization failed. See root cause above.",
    )
    (tmp_path / "log").write_text("\n".join(log) + "\n")
    dying = program(tmp_path / "python", f"cat {tmp_path / 'log'}; exit 3")
    lines = refusal(tmp_path / "home", dying, str(model), "--port", "0").splitlines()
    assert lines[0].startswith("ltrain: vLLM ended with exit status 3. Its log is ")
    assert lines[-2:] == [log[-1], "The first error in it: RuntimeError: head_dim=16 is too small"]


def test_an_upstream_that_is_unreachable_or_serves_another_model_is_refused(
    tmp_path: Path, model: Path, vllm: Any
) -> None:
    arguments = (str(model), "--port", "0", "--upstream")
    lines = refusal(tmp_path / "a", "none", *arguments, "http://127.0.0.1:9")
    assert "No policy server answers at http://127.0.0.1:9" in lines
    lines = refusal(tmp_path / "b", "none", *arguments, vllm.url, "--policy", "sql")
    assert "serves policy. Start it with --served-model-name sql, or use --policy policy" in lines


def _anyone_runs(text: str) -> bool:
    """Return whether a fake vLLM has `text` in its command line."""
    return bool(_pids_of(text))


def _pids_of(text: str) -> list[int]:
    """Return the fake vLLMs with `text` in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = file.read_bytes().decode(errors="replace")
            if text in line and "fake_vllm" in line:
                found.append(int(file.parent.name))
    return found


@pytest.mark.parametrize(
    ("delays", "choice"), [((0, 0.5), "merged"), ((0.5, 0), "adapter")], ids=["slow", "fast"]
)
def test_a_trial_on_a_running_server_decides_what_is_published(
    tmp_path: Path, model: Path, vllm: Any, delays: tuple[float, float], choice: str
) -> None:
    vllm.delays = delays
    home = tmp_path / "home"
    arguments = (str(model), "--lora-rank", "12", "--upstream", vllm.url)
    with serving(home, "none", *arguments) as served:
        client = GatewayClient(served.url, home_secret(home))
        line = served.line(f"ltrain: publish = {choice}: with an adapter this server samples ")
        assert line == f"ltrain: {client.publish_choice('policy').describe()}"
        client.close()


def test_vllm_starts_again_with_its_adapter(
    tmp_path: Path, model: Path, python: Path, write_adapter: Any
) -> None:
    home = tmp_path / "home"
    options = ("--publish", "adapter", "--lora-rank", "12", "--max-adapters", "2")
    with serving(home, python, str(model), *options) as served:
        client = GatewayClient(served.url, home_secret(home))
        arguments = (home / "logs" / "vllm.log").read_text().splitlines()[0]
        limits = "--enable-lora --max-loras 2 --max-cpu-loras 2 --max-lora-rank 16"
        assert limits in arguments
        policies = Policies(home)
        policies.add("policy", write_adapter(tmp_path / "adapter"))
        client.load("policy", 1)
        assert served.ask("weights").json()["choices"][0]["message"]["content"] == "w1"
        assert served.ask("die").status_code == 503
        served.line("ltrain: vLLM runs again with policy v1")
        assert served.ask("weights").json()["choices"][0]["message"]["content"] == "w1"
        client.close()
    with serving(home, python, "--publish", "merged") as served:  # the current one is an adapter
        assert served.ask("weights").json()["choices"][0]["message"]["content"] == "w1"
        assert "policy v1" in served.line("ltrain: gateway ready")


def test_vllm_has_the_variables_of_the_user(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # on two cores the default is 0
    show = 'echo "in processes: $VLLM_ENABLE_V1_MULTIPROCESSING"'
    python = program(tmp_path / "python", f'{show}; exec {sys.executable} {FAKE_VLLM} "$@"')
    home = tmp_path / "home"
    with serving(home, python, str(model)) as served:
        served.line("ltrain: gateway ready at ")
    assert "in processes: 1" in (home / "logs" / "vllm.log").read_text().splitlines()


def test_policies_of_other_weights_have_servers_of_their_own(
    tmp_path: Path, model: Path, python: Path, write_model: Any, write_adapter: Any
) -> None:
    home = tmp_path / "home"
    policies = Policies(home)
    policies.register("critic", write_model(tmp_path / "other", fill=7))
    names = ("--policy", "solver", "--policy", "critic", "--policy", "checker")
    with serving(home, python, str(model), *names) as served:
        assert "policies solver v0, critic v0, checker v0" in served.line("ltrain: gateway ready")
        answers = [served.ask("weights", model=name) for name in ("solver", "critic", "checker")]
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert served.ask("w1", model="other").status_code == 404
    assert {file.name for file in (home / "logs").glob("vllm*")} == {
        "vllm-solver.log",
        "vllm-critic.log",
    }
    lines = refusal(home, python, *names, "--upstream", "http://127.0.0.1:9")
    assert "The policies solver, checker; critic have different weights" in lines
    with FakeVllm() as one, FakeVllm() as other:
        for server, name in ((one, "solver"), (other, "critic")):
            server.model_list = json.dumps({"data": [{"id": name, "max_model_len": 64}]})
        upstreams = ("--upstream", one.url, "--upstream", f"critic={other.url}")
        with serving(home, "no vLLM is started", *names, *upstreams) as served:
            for name, words in (("solver", "w1"), ("critic", "w2"), ("checker", "w3")):
                assert served.ask(words, model=name).status_code == 200
    prompts = [[body["messages"][-1]["content"] for body in each.requests] for each in (one, other)]
    assert prompts == [["w1", "w3"], ["w2"]]
    assert (one.weights, other.weights) == ("solver/v0", "critic/v0")


def test_vllm_gets_the_gpus_of_the_option(tmp_path: Path, model: Path) -> None:
    home = tmp_path / "home"
    python = program(tmp_path / "python", 'echo "RuntimeError: GPUs $CUDA_VISIBLE_DEVICES"; exit 1')
    assert "RuntimeError: GPUs 2,3" in refusal(home, python, str(model), "--gpus", "2,3")


def test_responses_are_kept_if_the_recipe_says_so(tmp_path: Path, model: Path, vllm: Any) -> None:
    section = Serve(upstream=vllm.url, responses_state=True)
    options = section.arguments(tmp_path, "bfloat16", Train())
    with serving(tmp_path / "home", "none", str(model), *options) as served:
        for previous in (None, "resp_1"):
            body = {"model": "policy", "input": "w1", "previous_response_id": previous}
            url = f"{served.url}/v1/responses"
            assert httpx.post(url, json=body, timeout=WAIT, trust_env=False).is_success
    assert [len(body["messages"]) for body in vllm.requests[-2:]] == [1, 3]


def test_prompts_continue_by_tokens_if_the_recipe_says_so(
    tmp_path: Path, model: Path, vllm: Any
) -> None:
    vllm.template = lambda body: [
        each for message in body["messages"] for each in (900, *message["content"].encode(), 1)
    ]
    section = Serve(upstream=vllm.url, continue_tokens=True)
    options = section.arguments(tmp_path, "bfloat16", Train())
    home = tmp_path / "home"
    with serving(home, "none", str(model), *options) as served:
        identity = Identity(rollout="r", attempt=1, mode="train")
        claims = AttemptKey(
            identity=identity, policy="policy", sampling={}, expires=Deadline.after(60)
        )
        headers = {"authorization": f"Bearer {claims.sign(home_secret(home))}"}
        question = {"role": "user", "content": "w5 h1"}
        answer = {"role": "assistant", "content": "w5"}
        for messages in ([question], [question, answer, question]):
            httpx.post(
                f"{served.url}/rollout/r/attempt/1/v1/chat/completions",
                json={"model": "policy", "messages": messages},
                headers=headers,
                trust_env=False,
            ).raise_for_status()
    turn = [900, *b"w5 h1", 1]
    continued = {"prompt_token_ids": [*turn, 5, 1, *turn]}
    assert vllm.requests[-1]["kv_transfer_params"] == continued
