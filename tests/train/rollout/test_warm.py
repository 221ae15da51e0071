"""Warm workers as the runner drives them: what is submitted has an end, whatever the agent does."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from ltrain_instrument.identity import Identity
from ltrain_train.rollout.attempt import Attempt, Ending, Endpoint, Outcome
from ltrain_train.rollout.lane import environment
from ltrain_train.rollout.warm import WarmWorkers

AGENT = """
import ctypes, os, time
from pathlib import Path

def solve(task, llm):
    if task["do"] == "exit":
        os._exit(3)
    if task["do"] == "hold":
        Path(task["mark"]).touch()
        ctypes.PyDLL(None).sleep(600)  # unlike CDLL, it keeps the lock of the interpreter
    if task["do"] == "sleep":
        time.sleep(600)
    return task["do"]
"""


Ended = queue.SimpleQueue[tuple[Attempt, Ending]]
Start = Callable[..., WarmWorkers]


@pytest.fixture
def ended() -> Ended:
    return queue.SimpleQueue()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Ended) -> Iterator[Start]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "warm_agent.py").write_text(AGENT)
    disabled = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai"}
    with ExitStack() as stack:

        def started(concurrency: int = 2, held: tuple[int, ...] = ()) -> WarmWorkers:
            lane = WarmWorkers(
                "warm_agent:solve",
                folder=tmp_path,
                environ=environment(tmp_path / "home", disabled),
                logs=tmp_path / "logs",
                workers=1,
                concurrency=concurrency,
                ended=lambda attempt, ending: ended.put((attempt, ending)),
                held=held,
            )
            stack.enter_context(closing(lane))
            lane.wait_ready(120)
            return lane

        yield started


def attempt(
    name: str, do: str, *, deadline: float = 600.0, alone: bool = False, **task: object
) -> Attempt:
    return Attempt(
        identity=Identity(run="r", rollout=name, attempt=1, mode="train"),
        task={"do": do, **task},
        endpoint=Endpoint("http://127.0.0.1:9", "key", "policy"),
        traceparent="",
        started=time.time_ns(),
        deadline=deadline,
        alone=alone,
    )


def test_an_attempt_whose_worker_was_replaced_before_it_began_is_an_outage(
    start: Start, ended: Ended
) -> None:
    lane = start(concurrency=8)
    lane.submit(attempt("a", "exit"))
    assert ended.get(timeout=60)[1].outcome is Outcome.ERROR  # no worker is ready now
    lane.submit(attempt("b", "sleep"))
    late, ending = ended.get(timeout=60)
    assert (late.identity.rollout, ending.outcome) == ("b", Outcome.INFRA)
    assert ending.reason == "its worker was replaced before it began"


def test_an_attempt_that_must_be_alone_never_begins_beside_another(
    start: Start, ended: Ended
) -> None:
    lane = start()
    lane.submit(attempt("a", "sleep"))
    lane.submit(attempt("b", "answer", alone=True))
    late, ending = ended.get(timeout=60)
    assert (late.identity.rollout, ending.outcome) == ("b", Outcome.INFRA)


def test_a_worker_gets_no_more_attempts_than_it_has_slots(start: Start, ended: Ended) -> None:
    lane = start(concurrency=1)
    lane.submit(attempt("a", "sleep"))
    lane.submit(attempt("b", "sleep"))
    assert ended.get(timeout=60)[0].identity.rollout == "b"


@pytest.mark.parametrize("end", ["expire", "close"])
def test_a_worker_that_reads_no_requests_stops_neither_deadlines_nor_the_run(
    start: Start, ended: Ended, tmp_path: Path, end: str
) -> None:
    lane, mark = start(), tmp_path / "mark"
    lane.submit(attempt("holds", "hold", deadline=1.0, mark=str(mark)))
    until = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < until
        time.sleep(0.01)

    def go_on() -> None:
        lane.submit(attempt("large", "answer", text="x" * (1 << 20)))  # a pipe holds 64 KiB
        if end == "close":
            lane.close()
        while end == "expire" and ended.empty():
            lane.expire()
            time.sleep(0.05)

    going = threading.Thread(target=go_on, daemon=True)
    going.start()
    going.join(60)
    assert not going.is_alive(), "the pipe of a worker that does not read holds up the runner"
    if end == "expire":
        ends = {each.id: ending.outcome for each, ending in [ended.get(timeout=60) for _ in "ab"]}
        assert ends == {"holds.1": Outcome.TIMEOUT, "large.1": Outcome.INFRA}


def test_the_lock_of_a_run_is_free_when_its_workers_have_ended(
    start: Start, held_lock: Any
) -> None:
    lane = start(held=(held_lock.descriptor,))
    held_lock.leave()
    assert not held_lock.free
    lane.close()
    assert held_lock.free
