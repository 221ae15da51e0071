"""The worker process: `opentelemetry-instrument python -m ltrain_train.workers.worker`.

It imports the agent's function once and runs many attempts at a time: a function in threads, a
coroutine function in one event loop. It reads requests and writes results as JSON lines over two
pipes, so the agent's output goes to the log only.

* Each attempt runs inside `ltrain_instrument.rollout` and one span, a child of its dispatch span.
* A result is sent only after the spans of its attempt were flushed.
* An exception of the agent is the outcome `error`; the gateway decides whether an outage caused it.
* A call that ends the process reports its attempt first, so that the others are not blamed. A death
  in another way, such as a segmentation fault, cannot be assigned to an attempt.
* The pool decides when an attempt exceeds its time limit. Then the worker cancels a coroutine. It
  answers that a thread cannot be cancelled: the pool ends the process after the other attempts.
"""

import argparse
import asyncio
import inspect
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ltrain_instrument import attributes, patches, rollout
from ltrain_instrument.identity import Identity, current_identity, use_context
from ltrain_instrument.prompts import read_prompts, use_prompts
from ltrain_train.workers.attempt import AttemptResult, Endpoint, Outcome
from ltrain_train.workers.reference import BadReference, load_function
from ltrain_train.workers.results import MAX_REASON_CHARACTERS, ResultSender

Solve = Callable[[Mapping[str, Any], Endpoint], Any]


HARMLESS_SIGNALS = (
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGURG,
    signal.SIGWINCH,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
"""Signals whose default action ends no process; a stopped process exceeds its time limit."""


class Worker:
    """Runs the requested attempts until the requests end."""

    def __init__(self, solve: Solve, concurrency: int, results: ResultSender) -> None:
        self._solve = solve
        self._results = results
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="rollout")
        self._loop = asyncio.new_event_loop() if inspect.iscoroutinefunction(solve) else None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The running coroutines that have not been cancelled, by execution id."""
        if self._loop is not None:
            threading.Thread(target=self._loop.run_forever, daemon=True).start()

    @property
    def cancels(self) -> bool:
        """Whether the worker cancels an overdue attempt itself."""
        return self._loop is not None

    def serve(self, requests: TextIO) -> None:
        """Start or cancel the attempt that each line names."""
        for line in requests:
            request = json.loads(line)
            name = request.get("cancel")
            if self._loop is not None and name:
                self._loop.call_soon_threadsafe(self._cancel, name)
            elif self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._run_async(request), self._loop)
            elif name:
                self._results.send_now({"id": name, "uncancellable": True})
            else:
                self._threads.submit(self._run, request)

    def _run(self, request: Mapping[str, Any]) -> None:
        endpoint = Endpoint(**request["endpoint"])
        try:
            with _rollout_context(request):
                result = AttemptResult(Outcome.OK, output=self._solve(request["task"], endpoint))
        except BaseException as error:  # the agent may raise anything, SystemExit too
            result = _error_result(error)
        self._results.put(request["id"], result)

    async def _run_async(self, request: Mapping[str, Any]) -> None:
        endpoint = Endpoint(**request["endpoint"])
        name, task = request["id"], asyncio.current_task()
        assert task is not None
        self._tasks[name] = task
        try:
            with _rollout_context(request):
                output = await self._solve(request["task"], endpoint)
            result = AttemptResult(Outcome.OK, output=output)
        except BaseException as error:  # as in `_run`
            result = _error_result(error)
            if name not in self._tasks:
                result = AttemptResult(
                    Outcome.TIMEOUT, f"cancelled after {request['timeout']:g} s of its own time"
                )
        self._tasks.pop(name, None)
        self._results.put(name, result)

    def _cancel(self, name: str) -> None:
        """Cancel an attempt that has not ended; from now on its error is a timeout."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()


@contextmanager
def _rollout_context(request: Mapping[str, Any]) -> Iterator[None]:
    """Run a block with the attempt's identity, below its dispatch span."""
    parent = TraceContextTextMapPropagator().extract({"traceparent": request["traceparent"]})
    tracer = trace.get_tracer(attributes.SCOPE_INSTRUMENT)
    with (
        use_context(parent),
        rollout(Identity(**request["identity"])),
        use_prompts(read_prompts(request["prompts"])),
        tracer.start_as_current_span(attributes.SPAN_SOLVE),
    ):
        yield


def _error_result(error: BaseException) -> AttemptResult:
    with suppress(OSError):  # the disk of the log may be full
        traceback.print_exception(error)
    reason = "".join(traceback.format_exception_only(error)).strip()[-MAX_REASON_CHARACTERS:]
    return AttemptResult(Outcome.ERROR, reason)


def patch_exit_calls(results: ResultSender) -> None:
    """Patch the functions that end this process, so that they first report the calling attempt."""
    if not patches.WORKER_EXIT.is_enabled():
        return
    for module, name, kills in (
        (os, "_exit", lambda *_, **__: True),
        (os, "abort", lambda: True),
        (
            os,
            "kill",
            lambda pid, number: (
                pid in (os.getpid(), 0, -os.getpgrp()) and _signal_ends_process(number)
            ),
        ),
        (
            os,
            "killpg",
            lambda group, number: group in (0, os.getpgrp()) and _signal_ends_process(number),
        ),
        (signal, "raise_signal", lambda number: _signal_ends_process(number)),
        (signal, "pthread_kill", lambda _, number: _signal_ends_process(number)),
    ):
        setattr(module, name, _patch_exit_call(name, getattr(module, name), kills, results))


def _patch_exit_call(
    name: str, function: Callable[..., Any], kills: Callable[..., bool], results: ResultSender
) -> Callable[..., Any]:
    owner = os.getpid()

    def call(*arguments: Any, **named: Any) -> Any:
        identity = current_identity()
        if os.getpid() == owner and identity.rollout and _ends_process(kills, *arguments, **named):
            values = ", ".join(str(value) for value in (*arguments, *named.values()))
            reason = f"it ended its worker: {name}({values})"
            attempt = f"{identity.rollout}.{identity.attempt}"
            results.send_now(
                {"id": attempt, "outcome": Outcome.ERROR, "reason": reason, "kills": True}
            )
        return function(*arguments, **named)

    return call


def _ends_process(kills: Callable[..., bool], *arguments: Any, **named: Any) -> bool:
    try:
        return kills(*arguments, **named)
    except (TypeError, ValueError):  # the patched function raises it to the agent
        return False


def _signal_ends_process(number: int) -> bool:
    if number == signal.SIGKILL:
        return True
    default = (signal.SIG_DFL, signal.default_int_handler)
    return number not in HARMLESS_SIGNALS and signal.getsignal(number) in default


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("agent")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--results", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    return parser.parse_args()


def run_worker() -> None:
    """Run attempts until the requests end."""
    options = _parse_arguments()
    for descriptor in (options.requests, options.results):
        os.set_inheritable(descriptor, False)  # a child of the agent would hold the pipe open
    results = ResultSender(os.fdopen(options.results, "w", buffering=1))
    try:
        solve = load_function(options.agent, Path.cwd())
    except BadReference as error:
        results.send_now({"broken": str(error)})
        sys.exit(1)
    patch_exit_calls(results)
    worker = Worker(solve, options.concurrency, results)
    results.send_now({"ready": os.getpid(), "cancels": worker.cancels})
    with os.fdopen(options.requests) as requests:
        worker.serve(requests)
    os._exit(0)  # the owner has ended: no thread of the agent may keep the process alive


if __name__ == "__main__":
    run_worker()
