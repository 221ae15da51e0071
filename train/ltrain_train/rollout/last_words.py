"""An agent that ends its own process names its attempt first: its neighbours are not blamed.

A death by another way, such as a segmentation fault, has no author: see `death`.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

from ltrain_instrument.ambient import current_identity
from ltrain_train.rollout.attempt import Outcome
from ltrain_train.rollout.results import Results

HARMLESS = (
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGURG,
    signal.SIGWINCH,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
"""Signals whose default action ends no process; one that is stopped runs past its deadline."""


def announce(results: Results) -> None:
    """Let what ends this process name the attempt that calls it."""
    for module, name, kills in (
        (os, "_exit", lambda *_, **__: True),
        (os, "abort", lambda: True),
        (os, "kill", lambda pid, number: pid in (os.getpid(), 0, -os.getpgrp()) and _ends(number)),
        (os, "killpg", lambda group, number: group in (0, os.getpgrp()) and _ends(number)),
        (signal, "raise_signal", lambda number: _ends(number)),
        (signal, "pthread_kill", lambda _, number: _ends(number)),
    ):
        setattr(module, name, _announced(name, getattr(module, name), kills, results))


def _announced(
    name: str, function: Callable[..., Any], kills: Callable[..., bool], results: Results
) -> Callable[..., Any]:
    home = os.getpid()

    def call(*arguments: Any, **named: Any) -> Any:
        identity = current_identity()
        if os.getpid() == home and identity.rollout and _holds(kills, *arguments, **named):
            values = ", ".join(str(value) for value in (*arguments, *named.values()))
            reason = f"it ended its worker: {name}({values})"
            attempt = f"{identity.rollout}.{identity.attempt}"
            results.say({"id": attempt, "outcome": Outcome.ERROR, "reason": reason, "kills": True})
        return function(*arguments, **named)

    return call


def _holds(kills: Callable[..., bool], *arguments: Any, **named: Any) -> bool:
    try:
        return kills(*arguments, **named)
    except (TypeError, ValueError):  # the function itself tells the agent what is wrong
        return False


def _ends(number: int) -> bool:
    if number == signal.SIGKILL:
        return True
    default = (signal.SIG_DFL, signal.default_int_handler)
    return number not in HARMLESS and signal.getsignal(number) in default
