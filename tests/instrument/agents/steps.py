"""Opens spans side by side: in the main thread, a thread, a fork and a child; then it ends."""

import os
import signal
import subprocess
import sys
import threading

from opentelemetry import trace


def step(name: str) -> None:
    with trace.get_tracer("agent").start_as_current_span(name):
        pass


if sys.argv[2:]:
    step("child")
    sys.exit()
step("main")
thread = threading.Thread(target=step, args=("thread",))
thread.start()
thread.join()
if (pid := os.fork()) == 0:
    step("fork")
    sys.exit()
os.waitpid(pid, 0)
subprocess.run([sys.executable, __file__, sys.argv[1], "child"], check=True)
if sys.argv[1] == "signal":
    os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[1] == "error":
    raise KeyError("end")
