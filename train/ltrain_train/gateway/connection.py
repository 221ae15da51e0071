"""The HTTP connection to a gateway, and its errors."""

import json
import os
import ssl
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import httpx
from opentelemetry.propagate import inject

from ltrain_instrument.errors import BadSetting, LtrainError

KEEPALIVE = 60.0
"""Seconds that an idle connection is kept: a new one waits behind those that agents open. The
gateway keeps one for 120 s."""


class GatewayUnreachable(LtrainError, ConnectionError):
    """No gateway answers at its address."""


class GatewayRefused(LtrainError, RuntimeError):
    """The gateway refused a request; the message is the gateway's."""


class PolicyServerAway(GatewayRefused):
    """The gateway answers, but its policy server is down: the same request may succeed later."""


class GatewayConnection:
    """Sends JSON requests to one gateway; safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.http = httpx.Client(
            base_url=self.url,
            timeout=30.0,
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE),
            trust_env=False,
            verify=_trusted_certificates(),
        )

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def request(
        self,
        method: str,
        path: str,
        key: str,
        body: dict[str, Any] | bytes | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Any]:
        """Send a request, whose body is an object or JSON, and return the answer's JSON object.

        Raises:
            GatewayUnreachable: when no gateway answers.
            PolicyServerAway: when its policy server is down.
            GatewayRefused: when it refuses the request.
        """
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        inject(headers)
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        try:
            response = self.http.request(
                method, path, content=content, headers=headers, timeout=timeout
            )
        except httpx.HTTPError as error:
            raise GatewayUnreachable(self.describe_absence(str(error))) from error
        if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise PolicyServerAway(_error_message(response))
        if response.status_code != HTTPStatus.OK:
            raise GatewayRefused(_error_message(response))
        return _json_object(response)

    def describe_absence(self, error: str) -> str:
        """Return a sentence for an error of the connection, and what to do."""
        if "CERTIFICATE" in error:
            return (
                f"The certificate of the gateway at {self.url} is not trusted: {error}. Set "
                "SSL_CERT_FILE to the PEM file of its authority, or use a name that it has."
            )
        fault = error.rstrip(".")
        if self.url.startswith("http:") and "disconnected" in fault:
            return (
                f"The server at {self.url} ends the connection: {fault}. If it serves TLS, its "
                "address begins with https://."
            )
        return (
            f"No gateway answers at {self.url}: {fault}. Start it with `ltrain serve MODEL`, or "
            "set LTRAIN_GATEWAY or the command's option to its address."
        )


def _trusted_certificates() -> ssl.SSLContext:
    """Return the authorities of SSL_CERT_FILE or SSL_CERT_DIR, or else the public ones."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:  # ssl.SSLError too
        file = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR", "")
        raise BadSetting(
            f"The certificates of SSL_CERT_FILE='{file}' cannot be read: {error}. Set it to a PEM "
            "file of the certificate authorities to trust, or unset it."
        ) from error


def _json_object(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of an answer."""
    with suppress(ValueError):
        if isinstance(content := response.json(), dict):
            return content
    raise GatewayRefused(
        f"{response.url} answers {response.text[:100]!r}, which no gateway answers. Check the "
        "address: `ltrain serve` prints it."
    )


def _error_message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The gateway answered {response.status_code}: {response.text[:500]}"
