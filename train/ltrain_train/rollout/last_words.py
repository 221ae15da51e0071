"""An agent that ends its own process says so first, so that its neighbours are not blamed for it.

A death by another way, such as a segmentation fault, has no author: see `death`.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

from ltrain_instrument.ambient import identity_here
from ltrain_train.rollout.attempt import Outcome
from ltrain_train.rollout.results import Results

FATAL = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)


def announce(results: Results) -> None:
    """Let `os._exit`, `os.abort`, `os.kill` and `raise_signal` name the attempt that calls them."""
    for module, name, kills in (
        (os, "_exit", lambda *_: True),
        (os, "abort", lambda *_: True),
        (os, "kill", lambda pid, number: pid == os.getpid() and number in FATAL),
        (signal, "raise_signal", lambda number: number in FATAL),
    ):
        setattr(module, name, _announced(getattr(module, name), kills, results))


def _announced(
    function: Callable[..., Any], kills: Callable[..., bool], results: Results
) -> Callable[..., Any]:
    home = os.getpid()

    def call(*given: Any) -> Any:
        identity = identity_here()
        if os.getpid() == home and identity is not None and identity.rollout and kills(*given):
            reason = f"it ended its worker: {function.__name__}{given}"
            attempt = f"{identity.rollout}.{identity.attempt}"
            results.say({"id": attempt, "outcome": Outcome.ERROR, "reason": reason, "kills": True})
        return function(*given)

    return call
