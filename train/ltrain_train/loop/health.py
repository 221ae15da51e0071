"""Whether a service answers at its address, is starting, or is not there."""

from collections.abc import Collection
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import urlopen

GATEWAY_START_TIMEOUT = 300.0
"""Maximum seconds of the gateway's start, in which its policy server loads the model."""


def responds(url: str, statuses: Collection[int] = (HTTPStatus.OK,), *, text: bytes = b"") -> bool:
    """Return whether a GET is answered in two seconds: one of `statuses`, `text` in the body."""
    try:
        with urlopen(url, timeout=2) as response:
            return response.status in statuses and text in response.read(1 << 16)
    except HTTPError as error:
        with error:
            return error.status in statuses and text in error.read(1 << 16)
    except (OSError, HTTPException):
        return False


def is_starting(url: str) -> bool:
    """Return whether a server accepts a request and does not answer it in two seconds.

    `ltrain serve` binds its port before it loads the model.
    """
    try:
        urlopen(url, timeout=2).close()
    except TimeoutError:
        return True
    except (OSError, HTTPException):
        pass
    return False
