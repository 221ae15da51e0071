"""Requests to a platform's HTTP API: retries, rate limits, and errors that say what to do."""

import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
import requests
from requests.adapters import HTTPAdapter
from tenacity import retry, retry_if_exception_type, stop_after_attempt
from urllib3.util import Retry

from ltrain_collector.errors import NotThere, SourceFailed, TooMuchAtOnce
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
MAX_BYTES, CHUNK_BYTES = 256 << 20, 1 << 20
"""Size of an answer above which fewer entries are asked for, and of a part of it."""
LIMITS = ("limit", "max_results")
"""Names of the number of entries in queries."""
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
        self._session, self._limits = requests.Session(), dict[str, int]()
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
            TooMuchAtOnce: the answer is larger than `MAX_BYTES`.
            SourceFailed: it cannot be reached, refuses, or answers in another form.
        """
        return self._request("GET", path, query)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the answer to JSON.

        Raises:
            TooMuchAtOnce, SourceFailed: as `get`.
        """
        return self._request("POST", path, body)

    def page(self, path: str, values: Mapping[str, Any], *, method: str = "GET") -> Any:
        """Return a page of a list, which says where the next one begins.

        Args:
            values: the query, or the body of a POST. Its limit is halved for this and all later
                pages of the path while the answer is larger than `MAX_BYTES`.

        Raises:
            TooMuchAtOnce: one entry is larger.
            SourceFailed: as `get`.
        """
        name = next(each for each in LIMITS if each in values)
        while True:
            limit = min(self._limits.get(path, sys.maxsize), values[name])
            try:
                return self._request(method, path, {**values, name: limit})
            except TooMuchAtOnce:
                if limit == 1:
                    raise
                self._limits[path] = limit // 2

    def _request(self, method: str, path: str, values: Mapping[str, Any]) -> Any:
        url = f"{self._root}/{path}"
        try:
            answer, content = self._send(method, url, values)
        except requests.RequestException as error:
            raise SourceFailed(
                f"{self._name} does not answer: {_reason(error)}. Check the address, and start the "
                "same import again: it goes on with the page where it stopped."
            ) from error
        text = content[:SHOWN].decode(errors="replace")
        if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            absent = answer.status_code == HTTPStatus.NOT_FOUND
            raise (NotThere if absent else SourceFailed)(self._refusal(answer, url, text))
        try:
            return orjson.loads(content)
        except ValueError as error:
            raise SourceFailed(
                f"{url} answers with no JSON but {text!r}. Is it the address of the "
                "API? A path before the project is part of the server's address."
            ) from error

    @retry(
        retry=retry_if_exception_type(requests.exceptions.ChunkedEncodingError),
        stop=stop_after_attempt(CONNECTIONS),
        reraise=True,
    )
    def _send(
        self, method: str, url: str, values: Mapping[str, Any]
    ) -> tuple[requests.Response, bytes]:
        """Return a whole answer; one that ends early is asked for again."""
        query, body = (values, None) if method == "GET" else (None, values)
        with self._session.request(
            method,
            url,
            params=query,
            json=body,
            timeout=SECONDS,
            allow_redirects=False,
            stream=True,
        ) as answer:
            content = bytearray()
            for part in answer.iter_content(CHUNK_BYTES):
                content += part
                if len(content) > MAX_BYTES:
                    raise TooMuchAtOnce(
                        f"The answer of {url} is larger than {MAX_BYTES >> 20} MiB, and has one "
                        "entry or one second of traces. Leave them out with --since and --until."
                    )
            return answer, bytes(content)

    def _refusal(self, answer: requests.Response, url: str, text: str) -> str:
        shown = " ".join(text.split())
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
