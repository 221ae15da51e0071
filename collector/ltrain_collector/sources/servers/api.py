"""Requests to a platform's HTTP API: retries, rate limits, and errors that say what to do."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from tenacity import retry, retry_if_exception_type, stop_after_attempt
from urllib3.util import Retry

from ltrain_collector.errors import NotThere, SourceFailed
from ltrain_collector.sources.servers.address import Address

ATTEMPTS, CONNECTIONS, FIRST_WAIT, LONGEST_WAIT = 8, 3, 0.5, 60
"""Tries of a request to a busy server, and to one that breaks the connection, and the seconds
between them: each wait is twice the one before."""
BUSY = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""Answers after which a request is sent again, at the time of their `Retry-After`."""
SECONDS = (10, 120)
"""Limits of a connection's start and of the wait for bytes."""
SHOWN = 300
"""Characters of a refusal in an error."""


class Api:
    """One server's API."""

    def __init__(self, address: Address, prefix: str, keys: tuple[str, ...]) -> None:
        """
        Args:
            prefix: the path below the server's URL, with a slash at its start.
            keys: the environment variables with its keys, for errors.
        """
        self._root, self._name, self._keys = address.url + prefix, address.url, keys
        self._session = requests.Session()
        waits = Retry(
            ATTEMPTS,
            connect=CONNECTIONS,
            read=CONNECTIONS,
            backoff_factor=FIRST_WAIT,
            backoff_max=LONGEST_WAIT,
            status_forcelist=BUSY,
            allowed_methods=None,
            raise_on_status=False,
        )
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=waits))

    def authorize(self, user: str, password: str) -> None:
        """Send a user and a password with each request."""
        self._session.auth = (user, password)

    def set_header(self, name: str, value: str) -> None:
        """Send a header with each request."""
        self._session.headers[name] = value

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of an answer; a value None is not sent, a list is sent as several.

        Raises:
            NotThere: it has no such path.
            SourceFailed: it cannot be reached, refuses, or answers in another form.
        """
        return self._request("GET", path, query, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the answer to JSON.

        Raises:
            SourceFailed: as `get`.
        """
        return self._request("POST", path, {}, body)

    def _request(
        self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None
    ) -> Any:
        url = f"{self._root}/{path}"
        try:
            answer = self._send(method, url, query, body)
        except requests.RequestException as error:
            raise SourceFailed(
                f"{self._name} does not answer: {_reason(error)}. Check the address, and start the "
                "same command again: an import goes on with the page where it stopped."
            ) from error
        if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            absent = answer.status_code == HTTPStatus.NOT_FOUND
            raise (NotThere if absent else SourceFailed)(self._refusal(answer, url))
        try:
            return answer.json()
        except ValueError as error:
            raise SourceFailed(
                f"{url} answers with no JSON but {answer.text[:SHOWN]!r}. Is it the address of the "
                "API? A path before the project is part of the server's address."
            ) from error

    @retry(
        retry=retry_if_exception_type(requests.exceptions.ChunkedEncodingError),
        stop=stop_after_attempt(CONNECTIONS),
        reraise=True,
    )
    def _send(
        self, method: str, url: str, query: Mapping[str, Any], body: Mapping[str, Any] | None
    ) -> requests.Response:
        """Return a whole answer; one that ends early is asked for again."""
        return self._session.request(
            method, url, params=query, json=body, timeout=SECONDS, allow_redirects=False
        )

    def _refusal(self, answer: requests.Response, url: str) -> str:
        shown = " ".join(answer.text[:SHOWN].split())
        refusal = f"{url} answers {answer.status_code} {answer.reason}: {shown!r}."
        match answer.status_code:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                return f"{refusal} Set {' and '.join(self._keys)} to keys of this project."
            case HTTPStatus.NOT_FOUND:
                return f"{refusal} Check the address, and the version of the server."
            case HTTPStatus.TOO_MANY_REQUESTS:
                return (
                    f"{refusal} {ATTEMPTS} tries were too many for it. Start the same command "
                    "again later: an import goes on with the page where it stopped."
                )
        return refusal


def _reason(error: requests.RequestException) -> str:
    cause = error.args[0] if error.args else error
    return str(getattr(cause, "reason", cause))
