"""Waiting for a store or a gateway that is away, restarting or killed, instead of failing a run.

Each wait is logged when it begins and has an end.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ltrain_collector.errors import NO_CODE, QueryFailed, StoreUnreachable
from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway.client import AWAY, GatewayUnreachable, PolicyServerAway

T = TypeVar("T")

STORE = 60.0
"""Seconds that a store may be away."""
PAUSE = 0.5

_logger = logging.getLogger("ltrain.loop")


def patiently(ask: Callable[[], T], longest: float = STORE) -> T:
    """Ask until the store answers; `ask` only reads, so asking twice is asking once.

    Raises:
        StoreUnreachable: when it is away for more than `longest` seconds.
        QueryFailed: when it answers, with an error of its own.
    """
    return _wait("store", _store_is_away, ask, longest)


def until_served(publish: Callable[[], T], longest: float = AWAY) -> T:
    """Publish until the gateway and its policy server are there; publishing twice is harmless.

    Raises:
        GatewayUnreachable, PolicyServerAway: when one is away for more than `longest` seconds.
        GatewayRefused: when the version cannot be served.
    """
    return _wait("gateway", _gateway_is_away, publish, longest)


def _wait(
    name: str, is_away: Callable[[Exception], bool], ask: Callable[[], T], longest: float
) -> T:
    until: float | None = None
    while True:
        try:
            return ask()
        except LtrainError as error:
            if not is_away(error) or (until is not None and time.monotonic() > until):
                raise
            if until is None:
                until = time.monotonic() + longest
                _logger.warning(
                    "ltrain: waiting for the %s, at most %.0f s: %s", name, longest, error
                )
        time.sleep(PAUSE)


def _store_is_away(error: Exception) -> bool:
    # an error without ClickHouse's number is a connection's, not a query's
    return isinstance(error, StoreUnreachable) or (
        isinstance(error, QueryFailed) and error.code == NO_CODE
    )


def _gateway_is_away(error: Exception) -> bool:
    return isinstance(error, GatewayUnreachable | PolicyServerAway)
