"""Ends five spans, leaves one open, prints `ready`, and exits with the method of its argument."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from opentelemetry import trace

tracer = trace.get_tracer("agent")


def work() -> None:
    for number in range(5):
        tracer.start_span(f"done-{number}").end()


def run_forked() -> None:
    tracer.start_span("in-child").end()


async def run_asyncio(cancelled: bool) -> None:
    with tracer.start_as_current_span("closed"):
        print("serving", flush=True)
        if cancelled:
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]
        await asyncio.sleep(30)


def end_late() -> None:
    time.sleep(0.3)
    tracer.start_span("late").end()


def hang() -> None:
    tracer.start_span("in-daemon")
    time.sleep(60)


def end_spans_forever() -> None:
    """End spans forever, and print each after it has ended."""
    number = 0
    while True:
        tracer.start_span(f"restless-{number}").end()
        os.write(1, b"%d\n" % number)
        number += 1


def overflow_stack() -> None:
    """Overflow the C stack: map() calls its function from C."""
    sys.setrecursionlimit(10**9)

    def deeper(_: int) -> None:
        list(map(deeper, (0,)))

    deeper(0)


CRASHES: dict[str, Callable[[], object]] = {
    "abort": os.abort,
    "segmentation fault": lambda: ctypes.string_at(0),
    "recursion": overflow_stack,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "_exit of C": lambda: ctypes.CDLL(None)._exit(7),
}


def exit_with_status(number: int, frame: FrameType | None) -> None:
    sys.exit(5)


def restore_default(number: int, frame: FrameType | None) -> None:
    assert signal.signal(number, signal.SIG_DFL) is restore_default
    assert signal.getsignal(number) == signal.SIG_DFL
    os.kill(os.getpid(), number)


def prefork() -> None:
    """Serve like gunicorn: workers reset inherited signals, and exit in order."""
    workers = []
    for _ in range(2):
        worker = os.fork()
        if worker == 0:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, exit_with_status)
            tracer.start_span("in-worker").end()
            time.sleep(60)
        workers.append(worker)
    time.sleep(0.2)
    os.kill(workers[0], signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(workers[0], 0)[1]) == 5
    try:
        signal.signal(signal.SIGTERM, exit_with_status)
        print("serving", flush=True)
        time.sleep(60)
    finally:
        os.kill(workers[1], signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(workers[1], 0)[1]) == 5


def serve() -> None:
    import uvicorn

    async def app(scope: object, receive: object, send: object) -> None:
        if isinstance(scope, dict) and scope["type"] == "lifespan":
            tracer.start_span("in-worker").end()
            print("serving", flush=True)

    uvicorn.run(app, port=0, log_level="critical", lifespan="on")


def spin(exit_method: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if exit_method == "sleep":
            time.sleep(1)
        elif exit_method == "flushing":
            tracer.start_span("busy").end()
            import ltrain

            ltrain.flush()


def main(exit_method: str) -> None:
    if exit_method in ("handler", "default again"):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        handler = exit_with_status if exit_method == "handler" else restore_default
        assert signal.signal(signal.SIGTERM, handler) == signal.SIG_DFL
    work()
    tracer.start_span("open")
    print("ready", flush=True)
    if exit_method == "raise":
        raise ValueError("as asked")
    if exit_method == "sys.exit":
        sys.exit(3)
    if exit_method == "os._exit":
        os._exit(4)
    if exit_method in CRASHES:
        CRASHES[exit_method]()
    if exit_method == "fork":
        child = multiprocessing.get_context("fork").Process(target=run_forked)
        child.start()
        child.join()
    if exit_method == "threads":
        threading.Thread(target=end_late).start()
    if exit_method == "daemon":
        threading.Thread(target=hang, daemon=True).start()
        time.sleep(0.2)
    if exit_method == "restless daemon":
        threading.Thread(target=end_spans_forever, daemon=True).start()
        time.sleep(0.2)
    if exit_method == "busy":
        end_spans_forever()
    if exit_method in ("asyncio", "cancelled"):
        asyncio.run(run_asyncio(exit_method == "cancelled"))
    if exit_method == "prefork":
        prefork()
    if exit_method == "uvicorn":
        serve()
    if exit_method in ("sleep", "spin", "flushing", "handler", "default again"):
        spin("sleep" if exit_method in ("handler", "default again") else exit_method)


main(sys.argv[1])
