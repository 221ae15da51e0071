"""Waiting for a store or a gateway that is away, restarting or killed, instead of failing a run.

Each wait is logged when it begins and has an end.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ltrain_collector.errors import NO_CODE, QueryFailed, StoreUnreachable
from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway.client import OUTAGE_TIMEOUT, GatewayUnreachable, PolicyServerAway

T = TypeVar("T")

STORE_TIMEOUT = 60.0
"""Seconds that a store may be away."""
RETRY_PAUSE = 0.5

_logger = logging.getLogger("ltrain.loop")


def retry_store(request: Callable[[], T], timeout: float = STORE_TIMEOUT) -> T:
    """Ask until the store answers; `ask` only reads, so asking twice is asking once.

    Raises:
        StoreUnreachable: when it is away for more than `longest` seconds.
        QueryFailed: when it answers, with an error of its own.
    """
    return _retry("store", _store_is_away, request, timeout)


def retry_publish(publish: Callable[[], T], timeout: float = OUTAGE_TIMEOUT) -> T:
    """Publish until the gateway and its policy server are there; publishing twice is harmless.

    Raises:
        GatewayUnreachable, PolicyServerAway: when one is away for more than `longest` seconds.
        GatewayRefused: when the version cannot be served.
    """
    return _retry("gateway", _gateway_is_away, publish, timeout)


def _retry(
    name: str, is_away: Callable[[Exception], bool], request: Callable[[], T], timeout: float
) -> T:
    until: float | None = None
    while True:
        try:
            return request()
        except LtrainError as error:
            if not is_away(error) or (until is not None and time.monotonic() > until):
                raise
            if until is None:
                until = time.monotonic() + timeout
                _logger.warning(
                    "ltrain: waiting for the %s, at most %.0f s: %s", name, timeout, error
                )
        time.sleep(RETRY_PAUSE)


def _store_is_away(error: Exception) -> bool:
    # an error without ClickHouse's number is a connection's, not a query's
    return isinstance(error, StoreUnreachable) or (
        isinstance(error, QueryFailed) and error.code == NO_CODE
    )


def _gateway_is_away(error: Exception) -> bool:
    return isinstance(error, GatewayUnreachable | PolicyServerAway)
