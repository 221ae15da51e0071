"""The worker pool: every submitted attempt gets a result, whatever the agent does."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ltrain_instrument.identity import Identity
from ltrain_train.workers import output
from ltrain_train.workers.attempt import Attempt, AttemptResult, Endpoint, Outcome
from ltrain_train.workers.executor import AgentProcesses, agent_environment
from ltrain_train.workers.worker import _error_result
from ltrain_train.workers.worker_pool import WorkerPool

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
    while task["do"] == "print":
        print("x" * 10_000)
    if task["do"] == "report":
        print("x" * 1_500_000)
        time.sleep(1.2)  # longer than between two looks at the log
    while task["do"] == "await" and not Path(task["mark"]).exists():
        time.sleep(0.02)
    return task["do"]
"""


Results = queue.SimpleQueue[tuple[Attempt, AttemptResult]]
Start = Callable[..., WorkerPool]


@pytest.fixture
def on_end() -> Results:
    return queue.SimpleQueue()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_end: Results) -> Iterator[Start]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "warm_agent.py").write_text(AGENT)
    disabled = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai"}
    with ExitStack() as stack:

        def start_pool(concurrency: int = 2, keep_open: tuple[int, ...] = ()) -> WorkerPool:
            pool = WorkerPool(
                AgentProcesses(
                    agent="warm_agent:solve",
                    folder=tmp_path,
                    environ=agent_environment(tmp_path / "home", disabled),
                    logs=tmp_path / "logs",
                    workers=1,
                    concurrency=concurrency,
                    keep_open=keep_open,
                ),
                on_end=lambda attempt, ending: on_end.put((attempt, ending)),
            )
            stack.enter_context(closing(pool))
            pool.wait_ready(120)
            return pool

        yield start_pool


def attempt(
    name: str, do: str, *, timeout: float = 600.0, isolated: bool = False, **task: object
) -> Attempt:
    return Attempt(
        identity=Identity(run="r", rollout=name, attempt=1, mode="train"),
        task={"do": do, **task},
        endpoint=Endpoint("http://127.0.0.1:9", "key", "policy"),
        traceparent="",
        started=time.time_ns(),
        timeout=timeout,
        isolated=isolated,
    )


def test_an_attempt_whose_worker_was_replaced_before_it_started_is_infra(
    start: Start, on_end: Results
) -> None:
    pool = start(concurrency=8)
    pool.submit(attempt("a", "exit"))
    assert on_end.get(timeout=60)[1].outcome is Outcome.ERROR  # no worker is ready now
    pool.submit(attempt("b", "sleep"))
    late, ending = on_end.get(timeout=60)
    assert (late.identity.rollout, ending.outcome) == ("b", Outcome.INFRA)
    assert ending.reason == "its worker was replaced before it began"


def test_an_isolated_attempt_never_shares_a_worker(start: Start, on_end: Results) -> None:
    pool = start()
    pool.submit(attempt("a", "sleep"))
    pool.submit(attempt("b", "answer", isolated=True))
    late, ending = on_end.get(timeout=60)
    assert (late.identity.rollout, ending.outcome) == ("b", Outcome.INFRA)


def test_an_agent_that_has_returned_does_not_exceed_its_time_limit(
    start: Start, on_end: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # a collector that never answers
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        pool = start()
        pool.submit(attempt("a", "answer"))
        time.sleep(1.0)
        assert on_end.empty(), "the result waits for the flush"
        until = time.monotonic() + 30
        while on_end.empty() and time.monotonic() < until:
            pool.time_out({"a.1"})
            time.sleep(0.05)
        assert on_end.get(timeout=1)[1] == AttemptResult(Outcome.OK, output="answer")


def test_an_agent_that_has_returned_leaves_room_for_one_more(
    start: Start, on_end: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # a collector that never answers
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        pool = start(concurrency=2)
        for name, expected in (("a", 2), ("b", 1), ("c", 0)):
            pool.submit(attempt(name, "answer"))
            until = time.monotonic() + 60
            while pool.free_slots() != expected and time.monotonic() < until:
                time.sleep(0.01)
            assert (pool.free_slots(), on_end.empty()) == (expected, True)


def test_a_worker_gets_at_most_its_number_of_slots(start: Start, on_end: Results) -> None:
    pool = start(concurrency=1)
    pool.submit(attempt("a", "sleep"))
    pool.submit(attempt("b", "sleep"))
    assert on_end.get(timeout=60)[0].identity.rollout == "b"


@pytest.mark.parametrize("end", ["expire", "close"])
def test_a_worker_that_reads_no_requests_blocks_neither_timeouts_nor_the_run(
    start: Start, on_end: Results, tmp_path: Path, end: str
) -> None:
    pool, mark = start(), tmp_path / "mark"
    pool.submit(attempt("holds", "hold", timeout=1.0, mark=str(mark)))
    until = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < until
        time.sleep(0.01)

    def resume() -> None:
        pool.submit(attempt("large", "answer", text="x" * (1 << 20)))  # a pipe holds 64 KiB
        if end == "close":
            pool.close()
        while end == "expire" and on_end.empty():
            pool.time_out({"holds.1"})
            time.sleep(0.05)

    going = threading.Thread(target=resume, daemon=True)
    going.start()
    going.join(60)
    assert not going.is_alive(), "the pipe of a worker that does not read holds up the runner"
    if end == "expire":
        ends = {each.id: ending.outcome for each, ending in [on_end.get(timeout=60) for _ in "ab"]}
        assert ends == {"holds.1": Outcome.TIMEOUT, "large.1": Outcome.INFRA}


def test_a_thread_that_exceeds_its_time_limit_ends_no_other_attempt(
    start: Start, on_end: Results, tmp_path: Path
) -> None:
    pool, marks = start(concurrency=3), [tmp_path / "first", tmp_path / "second"]
    pool.submit(attempt("hangs", "sleep"))
    pool.submit(attempt("b", "await", mark=str(marks[0])))
    pool.submit(attempt("c", "await", mark=str(marks[1])))
    until = time.monotonic() + 60
    while on_end.empty() and time.monotonic() < until:
        pool.time_out({"hangs.1"})
        time.sleep(0.05)
    hangs, ending = on_end.get(timeout=1)
    assert (hangs.id, ending.outcome) == ("hangs.1", Outcome.TIMEOUT)
    while pool.free_slots() == 0 and time.monotonic() < until:
        time.sleep(0.05)
    assert pool.free_slots() == 1, "the other attempts go on, and count"
    pool.submit(attempt("d", "answer"))
    assert on_end.get(timeout=60)[1] == AttemptResult(Outcome.OK, output="answer")
    for mark in marks:
        mark.touch()
        assert on_end.get(timeout=60)[1] == AttemptResult(Outcome.OK, output="await")
    assert pool.free_slots() == 3
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert "Traceback" not in log


def test_a_worker_that_has_retired_ends_with_its_last_attempt(
    start: Start, on_end: Results, tmp_path: Path
) -> None:
    pool = start(concurrency=2)
    for name in ("a", "b"):
        pool.submit(attempt(name, "sleep"))
    ends: dict[str, Outcome] = {}
    until = time.monotonic() + 60
    for overdue in ({"a.1"}, {"a.1", "b.1"}):
        while len(ends) < len(overdue) and time.monotonic() < until:
            pool.time_out(overdue)
            if not on_end.empty():
                ended, ending = on_end.get()
                ends[ended.id] = ending.outcome
            time.sleep(0.05)
    assert ends == {"a.1": Outcome.TIMEOUT, "b.1": Outcome.TIMEOUT}
    while pool.free_slots() < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert pool.free_slots() == 2


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_that_prints_too_much_is_ended_and_its_log_is_cut(
    start: Start, on_end: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr(output, "MAX_OUTPUT_BYTES", 2 << 20)
    pool = start(concurrency=concurrency)
    pool.submit(attempt("prints", "print"))
    names = {"prints"}
    if concurrency > 1:
        pool.submit(attempt("sleeps", "sleep"))
        names.add("sleeps")
    ends = {
        ended.identity.rollout: result for ended, result in (on_end.get(timeout=60) for _ in names)
    }
    reason = "its worker printed more than 2 MiB"
    if concurrency == 1:
        assert ends == {"prints": AttemptResult(Outcome.ERROR, reason)}
    else:
        reason += "; others ran in it: it is tried again alone"
        tried_again = AttemptResult(Outcome.INFRA, reason, died=True)
        assert ends == {"prints": tried_again, "sleeps": tried_again}
    log = tmp_path / "logs" / "worker-1.log"
    until = time.monotonic() + 60
    while log.stat().st_size > 1 << 20 and time.monotonic() < until:
        time.sleep(0.05)
    assert log.stat().st_size == 1 << 20
    while pool.free_slots() < concurrency and time.monotonic() < until:
        time.sleep(0.05)
    pool.submit(attempt("next", "answer"))
    assert on_end.get(timeout=60)[1] == AttemptResult(Outcome.OK, output="answer")


def test_attempts_that_print_much_together_count_and_the_log_is_cut(
    start: Start, on_end: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_OUTPUT_BYTES", 2 << 20)
    pool = start(concurrency=1)
    for name in "abcd":
        pool.submit(attempt(name, "report"))
        assert on_end.get(timeout=60)[1] == AttemptResult(Outcome.OK, output="report")
    assert (tmp_path / "logs" / "worker-1.log").stat().st_size <= 3_600_000


def test_the_lock_of_a_run_is_free_when_its_workers_have_ended(
    start: Start, held_lock: Any
) -> None:
    pool = start(keep_open=(held_lock.descriptor,))
    held_lock.release()
    assert not held_lock.is_free
    pool.close()
    assert held_lock.is_free


def test_an_error_is_reported_though_the_disk_of_the_log_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = []
    with suppress(OSError), open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr("sys.stderr", full)
        results.append(_error_result(ValueError("why")))
    assert [result.reason for result in results] == ["ValueError: why"]
