"""A slow model server times out no attempt, and an attempt that it made late never counts."""

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.fake_vllm import FakeVllm
from tests.runners import make_runner
from tests.train.gateway.conftest import write_model
from tests.train.gateway.test_serve import serving

from ltrain_train.rollout import Runner, Task
from ltrain_train.rollout.attempt_log import read_entry
from ltrain_train.store import home_secret

CALL_SECONDS = 1.2
TASKS = ("w2", "w3", "thinks", "stuck", "impatient", "hasty", "patient")
AGENT = """
import asyncio, json, time, urllib.request
from concurrent.futures import ThreadPoolExecutor

def ask(llm, text, timeout=None):
    body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    url = f"{llm.base_url}/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=timeout).read()

def solve(task, llm):
    if task["input"] == "thinks":
        ask(llm, "w1")
        time.sleep(60)
    if task["input"] == "impatient":
        ask(llm, "stuck", timeout=5.5)
    if task["input"] == "hasty":
        ask(llm, "w1", timeout=0.3)
    if task["input"] == "patient":
        try:
            ask(llm, "w1", timeout=0.3)
        except TimeoutError:
            ask(llm, "w1")
        raise ValueError("a wrong answer")
    with ThreadPoolExecutor(2) as pool:  # two calls at the same time, twice
        for number in range(2):
            list(pool.map(lambda text: ask(llm, text), ["w1", task["input"]]))
    return "done"

def hurry(task, llm):
    ask(llm, "w1", timeout=8)

async def solve_async(task, llm):
    return await asyncio.to_thread(solve, task, llm)
"""


@contextmanager
def slow_server(folder: Path, calls: tuple[float, Any], **settings: Any) -> Iterator[Runner]:
    """A runner beside a gateway, whose server takes so many seconds a call, and keeps `turns`."""
    home = folder / "home"
    write_model(folder / "model")
    (folder / "late.py").write_text(AGENT)
    with FakeVllm() as vllm:
        vllm.delays, vllm.turns = (calls[0], 0.0), calls[1]
        upstream = ("--upstream", vllm.url, str(folder / "model"))
        with (
            serving(home, Path(sys.executable), *upstream) as served,
            make_runner(
                run="r",
                reward=None,
                folder=folder,
                gateway=served.url,
                secret=home_secret(home),
                policy="policy",
                home=home,
                workers=1,
                environ={"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai"},
                **settings,
            ) as runner,
        ):
            yield runner


def attempts(folder: Path) -> list[dict[str, Any]]:
    """Return the ended attempts of the run."""
    lines = (folder / "home" / "runs" / "r" / "attempts.jsonl").read_bytes().splitlines()
    return [each for each in map(read_entry, lines) if each and "outcome" in each]


@pytest.mark.parametrize(
    "agent", ["late:solve_async", pytest.param("late:solve", marks=pytest.mark.nightly)]
)
def test_the_time_of_a_slow_server_is_not_the_agents(
    tmp_path: Path, outside: Any, agent: str
) -> None:
    limits = {"timeout": 2.0, "wall_timeout": 7.0}  # less than the two calls of a quick agent take
    calls = (CALL_SECONDS, nullcontext())
    with slow_server(tmp_path, calls, agent=agent, concurrency=4, **limits) as runner:
        tasks = [Task(id=text, input=text) for text in TASKS]
        results = runner.run("train", 0, tasks, 1, sampling={"temperature": 1.0})
    ends = {result.identity.task: result for result in results}
    assert {task: str(end.outcome) for task, end in ends.items()} == {
        "w2": "ok",
        "w3": "ok",
        "thinks": "timeout",
        "stuck": "infra",
        "impatient": "infra",
        "hasty": "error",
        "patient": "error",
    }
    stuck = r"it reached the wall limit of 7 s; its calls took \d+ s\."
    assert re.match(stuck, ends["stuck"].reason)
    assert ends["thinks"].reason.endswith("after 2 s of its own time")
    assert ends["impatient"].reason.startswith("it gave up 1 model call before the answer")
    assert "TimeoutError" in ends["impatient"].reason
    assert ends["w2"].seconds > 2.0
    ended = attempts(tmp_path)
    late = [each for each in ended if each["rollout"] == ends["stuck"].identity.rollout]
    assert [each["outcome"] for each in late] == ["infra"] * 3
    assert sum(each["outcome"] == "timeout" for each in ended) == 1


def test_fewer_attempts_run_at_a_time_while_the_server_is_too_slow(
    tmp_path: Path, outside: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with slow_server(tmp_path, (1.0, threading.Lock()), agent="late:hurry") as runner:
        tasks = [Task(id=str(number), input="w1") for number in range(12)]
        results = runner.run("train", 0, tasks, 1, sampling={"temperature": 1.0})
    assert Counter(str(each.outcome) for each in results)["ok"] >= 10, caplog.text
    assert all(each["outcome"] in ("ok", "infra") for each in attempts(tmp_path))
    sentence = r"at most \d rollouts at a time now: the model server answered one too late"
    assert re.search(sentence, caplog.text)
