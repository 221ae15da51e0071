"""The warm worker: `opentelemetry-instrument python -m ltrain_train.rollout.worker`.

It imports the agent's function once and runs many rollouts of it at a time: a function in threads,
a coroutine function in one event loop. Requests come and results go as JSON lines over two pipes of
its own, so whatever the agent prints is only log.

* Each rollout runs inside `ltrain_instrument.rollout` and one span, a child of its dispatch span.
* A result is sent only after the spans of its rollout were flushed.
* What the agent raises is its own: whether an outage made it do so is the gateway's to say.
* A coroutine is cancelled at its deadline; a thread cannot be, its owner ends the whole process.
"""

import argparse
import asyncio
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ltrain_instrument import attributes, rollout
from ltrain_instrument.identity import Identity
from ltrain_train.rollout.attempt import Ending, Endpoint, Outcome
from ltrain_train.rollout.last_words import announce
from ltrain_train.rollout.reference import BadReference, load_function
from ltrain_train.rollout.results import LONGEST_REASON, Results

Solve = Callable[[Mapping[str, Any], Endpoint], Any]


class Worker:
    """Runs the rollouts it is sent until its requests end."""

    def __init__(self, solve: Solve, concurrency: int, results: Results) -> None:
        self._solve = solve
        self._results = results
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="rollout")
        self._loop = asyncio.new_event_loop() if inspect.iscoroutinefunction(solve) else None
        if self._loop is not None:
            threading.Thread(target=self._loop.run_forever, daemon=True).start()

    @property
    def cancels(self) -> bool:
        """Whether it ends what is past its deadline by itself."""
        return self._loop is not None

    def serve(self, requests: TextIO) -> None:
        """Begin what each line asks for."""
        for line in requests:
            request = json.loads(line)
            if self._loop is None:
                self._threads.submit(self._run, request)
            else:
                asyncio.run_coroutine_threadsafe(self._run_async(request), self._loop)

    def _run(self, request: Mapping[str, Any]) -> None:
        endpoint = Endpoint(**request["endpoint"])
        try:
            with _rollout(request):
                ending = Ending(Outcome.OK, result=self._solve(request["task"], endpoint))
        except BaseException as error:  # the agent's own, SystemExit too: its outcome is `error`
            ending = _failure(error)
        self._results.put(request["id"], ending)

    async def _run_async(self, request: Mapping[str, Any]) -> None:
        endpoint = Endpoint(**request["endpoint"])
        limit = asyncio.timeout(request["deadline"])
        try:
            with _rollout(request):
                async with limit:
                    result = await self._solve(request["task"], endpoint)
            ending = Ending(Outcome.OK, result=result)
        except BaseException as error:  # as in `_run`
            ending = _failure(error)
            if limit.expired():
                ending = Ending(Outcome.TIMEOUT, f"cancelled after {request['deadline']:g} s")
        self._results.put(request["id"], ending)


@contextmanager
def _rollout(request: Mapping[str, Any]) -> Iterator[None]:
    """Stamp what runs inside with the rollout's identity, below its dispatch span."""
    above = TraceContextTextMapPropagator().extract({"traceparent": request["traceparent"]})
    token = context.attach(above)
    try:
        tracer = trace.get_tracer(attributes.SCOPE_INSTRUMENT)
        with (
            rollout(Identity(**request["identity"])),
            tracer.start_as_current_span(attributes.SPAN_SOLVE),
        ):
            yield
    finally:
        context.detach(token)


def _failure(error: BaseException) -> Ending:
    traceback.print_exception(error)
    reason = "".join(traceback.format_exception_only(error)).strip()[-LONGEST_REASON:]
    return Ending(Outcome.ERROR, reason)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("agent")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--results", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    """Serve until the requests end."""
    given = _arguments()
    for descriptor in (given.requests, given.results):
        os.set_inheritable(descriptor, False)  # a child of the agent would hold the pipe open
    results = Results(os.fdopen(given.results, "w", buffering=1))
    try:
        solve = load_function(given.agent, Path.cwd())
    except BadReference as error:
        results.say({"broken": str(error)})
        sys.exit(1)
    announce(results)
    worker = Worker(solve, given.concurrency, results)
    results.say({"ready": os.getpid(), "cancels": worker.cancels})
    with os.fdopen(given.requests) as requests:
        worker.serve(requests)
    os._exit(0)  # its owner is gone: no thread of the agent may keep the process


if __name__ == "__main__":
    main()
