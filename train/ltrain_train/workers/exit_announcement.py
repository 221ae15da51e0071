"""Reports which attempt ends a worker process, so that the others in it are not blamed.

A death in another way, such as a segmentation fault, cannot be assigned to an attempt: see `death`.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

from ltrain_instrument import patches
from ltrain_instrument.identity import current_identity
from ltrain_train.workers.attempt import Outcome
from ltrain_train.workers.results import ResultSender

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
