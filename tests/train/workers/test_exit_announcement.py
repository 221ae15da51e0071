"""A call that ends the process reports its attempt first; other calls report nothing."""

import json
import os
import signal
import subprocess
import sys

import pytest

from ltrain_instrument.patches import WORKER_EXIT
from ltrain_instrument.settings import DISABLED_PATCHES

SCRIPT = """
import os, signal, sys, threading
from ltrain_instrument import rollout
from ltrain_instrument.identity.rollout_identity import Identity
from ltrain_train.workers.worker import patch_exit_calls
from ltrain_train.workers.results import ResultSender

signal.signal(signal.SIGUSR2, lambda *_: None)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a job in the background inherits SIG_IGN
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # so does one of nohup
signal.signal(signal.SIGINT, signal.default_int_handler)
patch_exit_calls(ResultSender(sys.stdout))
if len(sys.argv) > 2:
    exec(sys.argv[1])
with rollout(Identity(run="r", rollout="abc", attempt=2, mode="train")):
    exec(sys.argv[1])
print("it lives", flush=True)
"""


def lines(code: str, *more: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, code, *more],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,  # a signal to its process group does not reach the test
    )
    return done.stdout.splitlines()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os._exit(3)", "_exit(3)"),
        ("os._exit(status=3)", "_exit(3)"),
        ("os.abort()", "abort()"),
        *(
            (f"os.kill(os.getpid(), {int(number)})", f", {int(number)})")
            for number in (
                signal.SIGKILL,
                signal.SIGTERM,
                signal.SIGHUP,
                signal.SIGINT,
                signal.SIGQUIT,
                signal.SIGALRM,
                signal.SIGUSR1,
                signal.SIGSEGV,
            )
        ),
        ("os.kill(0, 9)", "kill(0, 9)"),
        ("os.kill(-os.getpgrp(), 15)", ", 15)"),
        ("os.killpg(os.getpgrp(), 15)", ", 15)"),
        ("signal.raise_signal(15)", "raise_signal(15)"),
        ("signal.pthread_kill(threading.get_ident(), 15)", ", 15)"),
    ],
)
def test_a_call_that_ends_the_process_reports_its_attempt(code: str, reason: str) -> None:
    (line,) = lines(code)
    message = json.loads(line)
    assert (message["id"], message["outcome"], message["kills"]) == ("abc.2", "error", True)
    assert message["reason"].startswith("it ended its worker: ")
    assert message["reason"].endswith(reason)


@pytest.mark.parametrize(
    "code",
    [
        "os.kill(os.getpid(), 0)",
        "os.kill(os.getpid(), signal.SIGCHLD)",
        "os.kill(os.getpid(), signal.SIGPIPE)",
        "os.kill(os.getpid(), signal.SIGUSR2)",
        "try: os.kill(os.getpid(), 9, 9)\nexcept TypeError: pass",
        "try: os.kill(os.getpid(), 900)\nexcept OSError: pass",
    ],
)
def test_a_call_that_does_not_end_the_process_reports_nothing(code: str) -> None:
    assert lines(code) == ["it lives"]


def test_an_exit_outside_an_attempt_reports_nothing() -> None:
    assert lines("os._exit(3)", "outside") == []


CHANGED = """
import importlib, sys
from ltrain_instrument.patches import WORKER_EXIT
from ltrain_train.workers.worker import patch_exit_calls
from ltrain_train.workers.results import ResultSender

patch_exit_calls(ResultSender(sys.stdout))
for target in WORKER_EXIT.targets:
    module, name = target.split(":")
    function = getattr(importlib.import_module(module), name)
    if (function.__module__ or "").startswith("ltrain_"):
        print(target)
"""


@pytest.mark.parametrize("disabled", ["", "exit", "worker-exit"])
def test_the_switch_leaves_the_original_functions(disabled: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHANGED],
        env=os.environ | {DISABLED_PATCHES.name: disabled},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    is_on = disabled != WORKER_EXIT.name
    assert done.stdout.split() == (list(WORKER_EXIT.targets) if is_on else [])
