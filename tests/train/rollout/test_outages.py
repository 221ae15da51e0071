"""A policy server that is away for longer than an attempt's time limit ends no rollout."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.runners import make_runner
from tests.train.gateway.conftest import write_model
from tests.train.gateway.test_serve import FAKE_VLLM, program, serving

from ltrain_train.rollout import Task
from ltrain_train.rollout.attempt_log import read_entry
from ltrain_train.store import home_secret

LONGER = 3.0
"""Seconds by which the outage exceeds the time limit."""
FOREIGN = f"""
import signal, sys
sys.path.insert(0, {str(FAKE_VLLM.parent)!r})
from fake_vllm import FakeVllm
with FakeVllm(int(sys.argv[1])):
    signal.pause()
"""
Interrupt = tuple[str, Callable[[], None]]
"""The gateway's URL and a function that interrupts the policy server."""
AGENT = """
import asyncio, json, os, sys, time, urllib.error, urllib.request

def ask(url, key, text):
    body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    for _ in range(3):  # as OpenAI's clients do
        try:
            urllib.request.urlopen(request).read()
            open("called", "w").close()
            return
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise

def solve(task, llm):
    for number in range(8):
        time.sleep(0.15)
        ask(llm.base_url, llm.api_key, f"w{number}")
    return "done"

async def solve_async(task, llm):
    return await asyncio.to_thread(solve, task, llm)

if __name__ == "__main__":
    for number in range(8):
        time.sleep(0.15)
        ask(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], f"w{number}")
"""


@contextmanager
def own_vllm(tmp_path: Path, home: Path, away: float) -> Iterator[Interrupt]:
    """Serve with a vLLM that the gateway starts, and that takes `away` seconds to start again."""
    script = f"""[ -e {tmp_path}/later ] && sleep {away}
touch {tmp_path}/later
exec {sys.executable} {FAKE_VLLM} "$@" """

    def kill() -> None:
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if str(FAKE_VLLM) in line and str(home) in line and "guard.py" not in line:
                process.send_signal(signal.SIGKILL)

    with serving(home, program(tmp_path / "python", script), str(tmp_path / "model")) as served:
        yield served.url, kill


@contextmanager
def foreign_vllm(tmp_path: Path, home: Path, away: float) -> Iterator[Interrupt]:
    """Serve with a vLLM that was started elsewhere, ends, and is there again later."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, servers = f"http://127.0.0.1:{port}", list[subprocess.Popen[bytes]]()

    def start() -> None:
        servers.append(subprocess.Popen([sys.executable, "-c", FOREIGN, str(port)], cwd=tmp_path))
        while servers and not _responds(f"{url}/health"):
            time.sleep(0.02)

    def restart() -> None:
        servers[0].kill()
        servers.pop().wait()
        time.sleep(away)
        start()

    start()
    try:
        with serving(home, Path(sys.executable), "--upstream", url, str(tmp_path / "model")) as out:
            yield out.url, restart
            out.line("ltrain: the policy server serves policy v0 again")
            assert httpx.get(f"{url}/weight_info").json() == {"weight_version": "policy/v0"}
    finally:
        servers[0].kill()
        servers[0].wait()


def _responds(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize(
    ("serve", "agent", "timeout"),
    [
        (own_vllm, "waits:solve", 3.0),
        pytest.param(own_vllm, "waits:solve_async", 3.0, marks=pytest.mark.nightly),
        pytest.param(  # its start takes seconds
            *(own_vllm, f"{sys.executable} waits.py", 12.0), marks=pytest.mark.nightly
        ),
        (foreign_vllm, "waits:solve_async", 3.0),
    ],
)
def test_a_policy_server_that_is_away_ends_no_rollout_as_a_timeout(
    tmp_path: Path, outside: Any, serve: Any, agent: str, timeout: float
) -> None:
    home, folder = tmp_path / "home", tmp_path / "agent"
    write_model(tmp_path / "model")
    folder.mkdir()
    (folder / "waits.py").write_text(AGENT)
    with serve(tmp_path, home, timeout + LONGER) as (gateway, interrupt):
        settings: dict[str, Any] = {"workers": 1, "concurrency": 3, "timeout": timeout}
        if not agent.startswith("waits:"):
            settings["workers"] = 3
        with make_runner(
            run="r",
            agent=agent,
            reward=None,
            folder=folder,
            gateway=gateway,
            secret=home_secret(home),
            policy="policy",
            home=home,
            environ={"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai"},
            **settings,
        ) as runner:
            away = threading.Thread(target=_interrupt_after, args=(folder / "called", interrupt))
            away.start()
            tasks = [Task(id=f"t{number}", input="x") for number in range(6)]
            results = runner.run("train", 0, tasks, 1, sampling={"temperature": 1.0})
            away.join()
    assert results.outcomes == {"ok": 6}
    lines = (home / "runs" / "r" / "attempts.jsonl").read_bytes().splitlines()
    entries = filter(None, map(read_entry, lines))
    ends = Counter(each["outcome"] for each in entries if "outcome" in each)
    assert ends.keys() <= {"ok", "infra"}
    assert ends["infra"] <= 3, "only attempts that were in flight are tried again"
    assert max(result.seconds for result in results) > timeout + LONGER or ends["infra"]


def _interrupt_after(mark: Path, interrupt: Callable[[], None]) -> None:
    until = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.02)
    interrupt()
