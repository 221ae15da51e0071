"""The HTTP client of the gateway's lease queue."""

import json
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ltrain_train.gateway import (
    GatewayConnection,
    GatewayRefused,
    GatewayUnreachable,
    PolicyServerAway,
)

RETRY_DELAY = 1.0
"""Seconds between two tries to reach the gateway."""
ANSWER_TIMEOUT = 15.0
"""Seconds for an answer, besides the wait for a change: half of the time that a lease lasts, so
that one lost request ends no lease."""

Answer = TypeVar("Answer", bound=BaseModel)

_logger = logging.getLogger("ltrain.rollouts")


class LeaseClient:
    """Sends messages to one lease queue, until it is closed; safe to use from several threads."""

    def __init__(self, url: str, key: Callable[[], str]) -> None:
        """Prepare the client."""
        self._connection = GatewayConnection(url)
        self.url = self._connection.url
        self._key = key
        self._closed = threading.Event()
        self._away = False

    def send(self, path: str, message: BaseModel, answer: type[Answer]) -> Answer:
        """Send a message once."""
        timeout = ANSWER_TIMEOUT + float(getattr(message, "wait", 0.0))
        body = json.dumps(message.model_dump(mode="json"), ensure_ascii=False)
        encoded = body.encode(errors="replace")  # an agent's text may have lone surrogates
        content = self._connection.request("POST", path, self._key(), encoded, timeout)
        try:
            return answer.model_validate(content)
        except ValidationError as error:
            raise GatewayRefused(
                f"The gateway at {self.url} answers {path} in another form: "
                f"{error.errors()[0]['msg']}. Install the same version of ltrain on both machines."
            ) from error

    def send_until_answered(
        self, path: str, message: BaseModel, answer: type[Answer]
    ) -> Answer | None:
        """Send a message until the gateway answers; None if the client was closed before."""
        while not self._closed.is_set():
            try:
                found = self.send(path, message, answer)
            except (GatewayUnreachable, PolicyServerAway) as error:
                if not self._away:
                    _logger.warning("ltrain: %s It is tried again every second.", error)
                self._away = True
                self._closed.wait(RETRY_DELAY)
            else:
                self._away = False
                return found
        return None

    def stop_retries(self) -> None:
        """End the requests that are tried again."""
        self._closed.set()

    def close(self) -> None:
        """Close the connections."""
        self._closed.set()
        self._connection.close()
