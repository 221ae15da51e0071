"""Retries requests while the store or the gateway is down, instead of failing the run.

The start of each wait is logged, and each wait has a time limit.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from ltrain_collector.errors import NO_CODE, QueryFailed, StoreUnreachable
from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway import (
    OUTAGE_TIMEOUT,
    GatewayUnreachable,
    PolicyServerAway,
)

T = TypeVar("T")

STORE_TIMEOUT = 300.0
"""Maximum seconds of an outage of the store: one that the run started is up again in ten."""
RETRY_PAUSE = 0.5
LACKS = {202: "queries", 243: "space", 298: "files", 439: "threads"}
"""ClickHouse's codes of errors of a server that lacks something at the moment."""
SYSTEM_LACKS = ("errno: 24", "errno: 28", "errno: 30")
"""The same in an error of another code: the system refuses a file, space, or to write."""

_logger = logging.getLogger("ltrain.loop")


def retry_store(request: Callable[[], T], timeout: float = STORE_TIMEOUT) -> T:
    """Call `request`, which only reads, until the store answers.

    Raises:
        StoreUnreachable: when the store does not answer for `timeout` seconds.
        QueryFailed: when the store answers with an error.
    """
    return _retry("store", store_is_away, request, timeout)


def retry_load(publish: Callable[[], T], timeout: float = OUTAGE_TIMEOUT) -> T:
    """Call `publish`, which may be repeated, until the gateway and its policy server answer.

    Raises:
        GatewayUnreachable, PolicyServerAway: when one does not answer for `timeout` seconds.
        GatewayRefused: when the version cannot be served.
    """
    return _retry("gateway", _gateway_is_away, publish, timeout)


def _retry(
    name: str, is_away: Callable[[BaseException], bool], request: Callable[[], T], timeout: float
) -> T:
    try:
        return request()
    except LtrainError as error:
        if not is_away(error):
            raise
        _logger.warning("ltrain: waiting for the %s, at most %.0f s: %s", name, timeout, error)
    # the limit counts from the first failure, because a publication may take as long by itself
    retrying = Retrying(
        retry=retry_if_exception(is_away),
        wait=wait_fixed(RETRY_PAUSE),
        stop=stop_after_delay(timeout),
        reraise=True,
    )
    try:
        return retrying(request)
    except LtrainError as error:
        if is_away(error):
            waited = f"The {name} was waited for {timeout:.0f} s; the same command continues."
            error.args = (f"{error} {waited}", *error.args[1:])
        raise


def store_is_away(error: BaseException) -> bool:
    """Return whether an error is one of a store that does not answer, or lacks resources."""
    if isinstance(error, QueryFailed):
        # an error without ClickHouse's error code is one of the connection, not of the query
        lacks = error.code in LACKS or any(each in str(error) for each in SYSTEM_LACKS)
        return error.code == NO_CODE or lacks
    return isinstance(error, StoreUnreachable)


def _gateway_is_away(error: BaseException) -> bool:
    return isinstance(error, GatewayUnreachable | PolicyServerAway)
