"""Rollouts of agents that use services of the recipe."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ltrain_instrument.attributes import OUTCOME, OUTCOME_REASON, RESULT
from ltrain_train.attempt_services import ServiceFailed
from ltrain_train.rollout import Runner, Task
from ltrain_transforms.recipe import Service

Start = Callable[..., Runner]
Make = Callable[..., Task]

PROGRAM = """
import http.server, json, os, signal, threading
from pathlib import Path

lock, most, now = threading.Lock(), 0, 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global most, now
        with lock:
            now += 1
            most = max(most, now)
        mark = Path(self.path.strip("/"))
        if self.path.startswith("/die-once") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.path == "/die":
            os.kill(os.getpid(), signal.SIGKILL)
        content = json.dumps({"most": most, "service": os.getpid()}).encode()
        with lock:
            now -= 1
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass

port = int(os.environ["PORT"])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
COMMAND = """python -c 'import json, os, urllib.request as r
print(json.dumps({"address": os.environ["LTRAIN_SERVICE_DB"]}))
print(r.urlopen(os.environ["LTRAIN_SERVICE_DB"]).read().decode())'"""


@pytest.fixture
def service(tmp_path: Path) -> Callable[..., Service]:
    (tmp_path / "program.py").write_text(PROGRAM)

    def make(**keys: Any) -> Service:
        command = f"cd {tmp_path}; exec python program.py"
        return Service.model_validate({"name": "db", "command": command} | keys)

    return make


def test_a_function_finds_its_service_in_the_endpoint(
    runner: Start, task: Make, service: Callable[..., Service], outside: Any
) -> None:
    outside.pause = 0.05
    started = runner("plain:uses_service", services=[service(count=2)])
    results = started.run("train", 0, [task("a"), task("b")], 3, sampling={})
    assert results.outcomes == {"ok": 6}
    spans = outside.wait_spans(6, name="ltrain.rollout")
    answers = [json.loads(span.attributes[RESULT]) for span in spans]
    assert {answer["most"] for answer in answers} == {1}
    assert len({answer["address"] for answer in answers}) in (1, 2)


def test_a_command_finds_its_service_in_its_environment(
    runner: Start, task: Make, service: Callable[..., Service]
) -> None:
    results = runner(COMMAND, services=[service()], workers=2).run(
        "train", 0, [task()], 3, sampling={}
    )
    assert results.outcomes == {"ok": 3}


def test_the_reward_finds_the_service_of_the_attempt(
    runner: Start, task: Make, service: Callable[..., Service]
) -> None:
    services = [service(count=2, fresh=True)]
    started = runner("plain:uses_service", reward="scores:service_of_the_agent", services=services)
    results = started.run("train", 0, [task("a"), task("b")], 2, sampling={})
    assert [result.rewards for result in results] == [{"reward": 1.0}] * 4


@pytest.mark.parametrize("count", [1, 2])
def test_an_attempt_whose_service_was_killed_is_tried_again(
    runner: Start, task: Make, service: Callable[..., Service], outside: Any, count: int
) -> None:
    started = runner("plain:uses_service", services=[service(count=count)])
    (result,) = started.run("train", 0, [task(path="die-once")], 1, sampling={})
    assert (result.outcome, result.identity.attempt) == ("ok", 2)
    ends = outside.wait_spans(2, name="ltrain.rollout")
    assert [span.attributes[OUTCOME] for span in ends] == ["infra", "ok"]
    reason = ends[0].attributes[OUTCOME_REASON]
    assert "its service db-" in reason and "ended meanwhile" in reason


def test_a_second_death_of_its_own_service_is_the_agents_error(
    runner: Start, task: Make, service: Callable[..., Service], outside: Any
) -> None:
    started = runner("plain:uses_service", services=[service()])
    (result,) = started.run("train", 0, [task(path="die")], 1, sampling={})
    assert (result.outcome, result.identity.attempt) == ("error", 2)
    assert "its service db-1 ended meanwhile" in result.reason


def test_a_death_of_a_shared_service_is_no_error_of_the_agent(
    runner: Start, task: Make, service: Callable[..., Service]
) -> None:
    started = runner("plain:uses_service", services=[service(per="run", count=3)])
    (result,) = started.run("train", 0, [task(path="die")], 1, sampling={})
    assert (result.outcome, result.identity.attempt) == ("infra", 3)


def test_an_error_of_the_agent_stays_its_error(
    runner: Start, task: Make, service: Callable[..., Service]
) -> None:
    started = runner("plain:solve", services=[service()])
    (result,) = started.run("train", 0, [task(raises=True)], 1, sampling={})
    assert (result.outcome, result.identity.attempt) == ("error", 1)


def test_a_service_that_dies_in_every_attempt_ends_the_run(
    runner: Start, task: Make, service: Callable[..., Service], outside: Any
) -> None:
    started = runner("plain:uses_service", services=[service()])
    with pytest.raises(ServiceFailed, match=r"service db-1 ended by signal SIGKILL. Its log is"):
        started.run("train", 0, [task("a", path="die"), task("b", path="die")], 2, sampling={})


def test_a_service_that_cannot_start_ends_the_run_with_its_log(
    runner: Start, task: Make, service: Callable[..., Service]
) -> None:
    started = runner("plain:uses_service", services=[service(command="no-such-database")])
    with pytest.raises(ServiceFailed, match="no-such-database: not found"):
        started.run("train", 0, [task()], 1, sampling={})


HOLD = """
import os, sys
from pathlib import Path
from ltrain_train.attempt_services import ServicePool
from ltrain_transforms.recipe import Service
import time

service = Service(name="db", command="echo $$ >pid; python -m http.server $PORT --bind 127.0.0.1")
pool = ServicePool([service], folder=Path("."), home=Path("home"))
while pool.acquire() is None:
    time.sleep(0.05)
os.kill(os.getpid(), 9)
"""


def test_a_killed_run_leaves_no_service(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLD], cwd=tmp_path, check=False, timeout=120)
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not psutil.pid_exists(pid)
