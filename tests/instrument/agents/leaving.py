"""Ends five spans, leaves one open, says `ready`, and leaves the process in the way it is told."""

import multiprocessing
import os
import signal
import sys
import time

from opentelemetry import trace

tracer = trace.get_tracer("agent")


def work() -> None:
    for number in range(5):
        tracer.start_span(f"done-{number}").end()


def forked() -> None:
    tracer.start_span("in-child").end()


def main(way: str) -> None:
    work()
    tracer.start_span("open")
    print("ready", flush=True)
    if way == "raise":
        raise ValueError("as asked")
    if way == "sys.exit":
        sys.exit(3)
    if way == "os._exit":
        os._exit(4)
    if way == "killed":
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "fork":
        child = multiprocessing.get_context("fork").Process(target=forked)
        child.start()
        child.join()
    if way in ("sleep", "spin", "flushing"):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if way == "sleep":
                time.sleep(1)
            elif way == "flushing":
                trace.get_tracer("agent").start_span("busy").end()
                import ltrain

                ltrain.flush()


main(sys.argv[1])
