"""Each process of 120 rollouts is killed in turn: no rollout and no call is lost or doubled."""

import json
import random
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.train.remote.cluster import WAIT, Cluster, Program

from ltrain_collector.store import Store
from ltrain_train.processes import free_port

TESTS = Path(__file__).parents[2]
ROLLOUTS = 120
CALLS = 2
"""Calls of each rollout."""
COUNTED = ("ok", "error", "timeout")
CALLS_OF_ATTEMPTS = """
    SELECT rollout, attempt, count() AS calls, uniqExact(output) AS answers
    FROM otel.llm_calls WHERE delivered AND status != 'Error' GROUP BY rollout, attempt
"""
ARRIVED = f"""
    SELECT count(), sum(calls.calls)
    FROM (SELECT * FROM otel.rollouts WHERE outcome IN {COUNTED}) AS closed
    LEFT JOIN ({CALLS_OF_ATTEMPTS}) AS calls USING (rollout, attempt)
"""
"""Number of counted rollouts in the store, and of their calls."""
AGENT = """
    import json
    import time
    import urllib.request


    def ask(llm, text):
        body = {"model": llm.model, "messages": [{"role": "user", "content": text}]}
        headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
        url = f"{llm.base_url}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]


    def solve(task, llm):
        answers = []
        for turn in range(2):
            answers.append(ask(llm, f"{task['input']} w{turn}"))
            time.sleep(0.2)
        return answers
"""
REWARD_SERVICE = """
    import sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "1")
            self.end_headers()
            self.wfile.write(b"1")

        def log_message(self, *args):
            pass


    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Chaos:
    """The processes of the rollouts, by what they are."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._workers = stack, 0
        self._ports = dict(zip(("vllm", "reward"), (free_port(), free_port()), strict=True))
        agents = folder / "agents"
        agents.mkdir()
        (agents / "chaotic.py").write_text(textwrap.dedent(AGENT))
        reward = folder / "reward.py"
        reward.write_text(textwrap.dedent(REWARD_SERVICE))
        self._scripts = {"vllm": TESTS / "fake_vllm.py", "reward": reward}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("vllm")
        self.start("reward")
        otlp, grpc, sql = free_port(), free_port(), free_port()
        collector = f"http://127.0.0.1:{otlp}"
        upstream = f"http://127.0.0.1:{self._ports['vllm']}"
        self.cluster = Cluster(stack, folder, upstream, collector, agents)
        ports = ("--otlp-port", otlp, "--grpc-port", grpc, "--http-port", sql)
        up = self.cluster.start("up", "up", "--dir", self.cluster.home / "store", *ports)
        up.wait_for("store ready")
        self.dsn = f"http://127.0.0.1:{sql}"
        self.start("gateway")
        self.start("worker")
        self.start("worker")

    def start(self, name: str) -> None:
        """Start a process, also again after it was killed."""
        if name == "gateway":
            self.cluster.start_gateway()
            self.processes[name] = self.cluster.gateway.process
        elif name == "worker":
            self._workers += 1
            options = ("--agent", "chaotic:solve", "--workers", "1", "--concurrency", "8")
            program = self.cluster.worker(f"worker-{self._workers}", *options)
            self.processes[name] = program.process
        else:
            port = self._ports[name]
            process = subprocess.Popen([sys.executable, str(self._scripts[name]), str(port)])
            self._stack.callback(process.wait)
            self._stack.callback(process.kill)
            self.processes[name] = process
            wait_for_port(port, process)

    def kill(self, name: str) -> None:
        """End a process without a chance to clean up."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(WAIT)

    def run(self, tasks: Path) -> Program:
        reward = f"http://127.0.0.1:{self._ports['reward']}"
        return self.cluster.start(
            *("rollout", "rollout", tasks, "--to", self.cluster.url, "--json"),
            *("--rollouts-per-task", "2", "--timeout", "120", "--reward", reward),
        )

    def has_ended(self, attempts: int) -> bool:
        """Return whether at least so many attempts have ended."""
        log = self.cluster.home / "runs" / "tasks" / "attempts.jsonl"
        return log.exists() and log.read_text().count('"outcome"') >= attempts


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + WAIT
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    with ExitStack() as stack:
        yield Chaos(stack, tmp_path)


def until(condition: Callable[[], Any], program: Program) -> None:
    end = time.monotonic() + 2 * WAIT
    while not condition():
        assert program.process.poll() is None and time.monotonic() < end, program.output
        time.sleep(0.02)


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("gateway", marks=pytest.mark.nightly),
        "worker",
        pytest.param("vllm", marks=pytest.mark.nightly),
        pytest.param("reward", marks=pytest.mark.nightly),
    ],
)
def test_no_rollout_and_no_call_is_lost_or_doubled(
    chaos: Chaos, tmp_path: Path, victim: str
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    rows = [{"id": str(number), "input": f"w{number + 10}"} for number in range(ROLLOUTS // 2)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    program = chaos.run(tasks)
    for moment in sorted(random.Random(victim).sample(range(5, ROLLOUTS - 60), 2)):
        until(partial(chaos.has_ended, moment), program)
        chaos.kill(victim)
        chaos.start(victim)
    assert program.process.wait(4 * WAIT) in (0, 1), program.output
    output = program.output
    rollouts = json.loads(re.sub(r"\A.*?^\{", "{", output, flags=re.S | re.M))["rollouts"]
    assert len({each["rollout"] for each in rollouts}) == len(rollouts) == ROLLOUTS
    assert Counter(each["outcome"] for each in rollouts) == {"ok": ROLLOUTS}, output
    assert {each["rewards"]["reward"] for each in rollouts} == {1.0}
    with Store.open(chaos.dsn) as store:
        check_store(store, rollouts)


def check_store(store: Store, rollouts: list[dict[str, Any]]) -> None:
    """Compare what the store has with what the runner reported."""
    end = time.monotonic() + WAIT
    while store.query(ARRIVED).row(0) != (ROLLOUTS, CALLS * ROLLOUTS) and time.monotonic() < end:
        time.sleep(0.2)
    closed = store.query(
        "SELECT rollout, attempt, outcome, llm_calls, reason FROM otel.rollouts ORDER BY closed"
    )
    twice = closed.group_by("rollout", "attempt").len().filter(pl.col("len") > 1)
    assert twice.is_empty(), "an attempt ends once"
    assert set(closed["outcome"]) <= {*COUNTED, "infra"}
    assert closed.filter((pl.col("outcome") == "infra") & (pl.col("reason") == "")).is_empty()
    counted = closed.filter(pl.col("outcome").is_in(COUNTED))
    reported = {(each["rollout"], each["attempt"]): each["llm_calls"] for each in rollouts}
    stored = {(row["rollout"], int(row["attempt"])): row["llm_calls"] for row in counted.to_dicts()}
    assert stored == reported
    assert set(stored.values()) == {CALLS}
    calls = store.query(CALLS_OF_ATTEMPTS)
    answered = {(row["rollout"], int(row["attempt"])): row for row in calls.to_dicts()}
    for attempt in stored:
        row = answered[attempt]
        assert (row["calls"], row["answers"]) == (CALLS, CALLS), attempt
    judged = store.query(
        "SELECT rollout, attempt, count() AS values FROM otel.evaluations WHERE source = 'runner' "
        "GROUP BY rollout, attempt"
    )
    values = {(row["rollout"], int(row["attempt"])): row["values"] for row in judged.to_dicts()}
    assert {attempt: values.get(attempt) for attempt in stored} == dict.fromkeys(stored, 1)
