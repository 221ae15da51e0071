"""Ends five spans, leaves one open, says `ready`, and leaves the process in the way it is told."""

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


def forked() -> None:
    tracer.start_span("in-child").end()


async def waiting(cancelled: bool) -> None:
    with tracer.start_as_current_span("closed"):
        print("serving", flush=True)
        if cancelled:
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]
        await asyncio.sleep(30)


def running_on() -> None:
    time.sleep(0.3)
    tracer.start_span("late").end()


def hanging() -> None:
    tracer.start_span("in-daemon")
    time.sleep(60)


def restless() -> None:
    """End spans for ever, and print each after it has ended."""
    number = 0
    while True:
        tracer.start_span(f"restless-{number}").end()
        os.write(1, b"%d\n" % number)
        number += 1


def recursing() -> None:
    """Fill the C stack: map() calls its function from C."""
    sys.setrecursionlimit(10**9)

    def deeper(_: int) -> None:
        list(map(deeper, (0,)))

    deeper(0)


CRASHES: dict[str, Callable[[], object]] = {
    "abort": os.abort,
    "segmentation fault": lambda: ctypes.string_at(0),
    "recursion": recursing,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "_exit of C": lambda: ctypes.CDLL(None)._exit(7),
}


def out(number: int, frame: FrameType | None) -> None:
    sys.exit(5)


def default_again(number: int, frame: FrameType | None) -> None:
    assert signal.signal(number, signal.SIG_DFL) is default_again
    assert signal.getsignal(number) == signal.SIG_DFL
    os.kill(os.getpid(), number)


def prefork() -> None:
    """Serve as gunicorn does: workers reset the signals that they inherit, and leave in order."""
    workers = []
    for _ in range(2):
        worker = os.fork()
        if worker == 0:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, out)
            tracer.start_span("in-worker").end()
            time.sleep(60)
        workers.append(worker)
    time.sleep(0.2)
    os.kill(workers[0], signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(workers[0], 0)[1]) == 5
    try:
        signal.signal(signal.SIGTERM, out)
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


def spin(way: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if way == "sleep":
            time.sleep(1)
        elif way == "flushing":
            tracer.start_span("busy").end()
            import ltrain

            ltrain.flush()


def main(way: str) -> None:
    if way in ("handler", "default again"):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        handler = out if way == "handler" else default_again
        assert signal.signal(signal.SIGTERM, handler) == signal.SIG_DFL
    work()
    tracer.start_span("open")
    print("ready", flush=True)
    if way == "raise":
        raise ValueError("as asked")
    if way == "sys.exit":
        sys.exit(3)
    if way == "os._exit":
        os._exit(4)
    if way in CRASHES:
        CRASHES[way]()
    if way == "fork":
        child = multiprocessing.get_context("fork").Process(target=forked)
        child.start()
        child.join()
    if way == "threads":
        threading.Thread(target=running_on).start()
    if way == "daemon":
        threading.Thread(target=hanging, daemon=True).start()
        time.sleep(0.2)
    if way == "restless daemon":
        threading.Thread(target=restless, daemon=True).start()
        time.sleep(0.2)
    if way == "busy":
        restless()
    if way in ("asyncio", "cancelled"):
        asyncio.run(waiting(way == "cancelled"))
    if way == "prefork":
        prefork()
    if way == "uvicorn":
        serve()
    if way in ("sleep", "spin", "flushing", "handler", "default again"):
        spin("sleep" if way in ("handler", "default again") else way)


main(sys.argv[1])
