"""A target of `ltrain up --forward`: an OTLP endpoint with a name and headers.

Headers hold secrets, so they come from the environment only, and no message contains them. For the
same reason a URL has no user, no password and no query.
"""

import os
import re
import socket
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from ltrain_collector.errors import BadTarget
from ltrain_collector.signals import Signal
from ltrain_instrument.delivery import parse_headers
from ltrain_instrument.settings import FORWARD_HEADERS

UNNAMED = "default"
"""The name of a target without one."""

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

PORTS = {"http": 80, "https": 443, "grpc": None, "grpcs": None}
"""The schemes of URLs, with the port of a URL that names none; gRPC has no port of its own."""
GRPC = ("grpc://", "grpcs://")

EXAMPLE = "e.g. --forward langfuse=https://cloud.langfuse.com/api/public/otel"


@dataclass(frozen=True, slots=True)
class Target:
    """An OTLP endpoint: over HTTP, with the paths of the signals below its URL, or over gRPC."""

    name: str
    url: str

    @property
    def variable(self) -> str:
        """The environment variable with its headers."""
        if self.name == UNNAMED:
            return FORWARD_HEADERS.name
        return f"LTRAIN_FORWARD_{self.name.upper().replace('-', '_')}_HEADERS"

    def headers(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the headers of its requests.

        Raises:
            BadTarget: the variable is not in OpenTelemetry's form.
        """
        text = environ.get(self.variable, "")
        headers = parse_headers(text)
        if len(headers) != len([item for item in text.split(",") if item.strip()]):
            raise BadTarget(
                f"{self.variable} is not in OpenTelemetry's form. Write name=value, several "
                "separated by commas, with the commas and spaces of a value as %2C and %20."
            )
        return headers

    @property
    def is_grpc(self) -> bool:
        return self.url.startswith(GRPC)

    @property
    def address(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    def signal_url(self, signal: Signal) -> str:
        """Return the URL to which requests of a signal are posted over HTTP."""
        return f"{self.url}{signal.path}"


def parse_targets(texts: Iterable[str]) -> tuple[Target, ...]:
    """Return the targets of `--forward URL` and `--forward NAME=URL`.

    Raises:
        BadTarget: a name or a URL is invalid, or two targets have the same name.
    """
    targets = tuple(_parse_target(text) for text in texts)
    counts = Counter(target.name for target in targets)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise BadTarget(
            f"Two targets of --forward have the name '{repeated[0]}'. Give each a name of its "
            f"own, {EXAMPLE}."
        )
    return targets


def _parse_target(text: str) -> Target:
    has_name = not re.match(r"[a-z]+://", text)
    name, _, url = text.partition("=") if has_name else (UNNAMED, "", text)
    if not NAME.fullmatch(name):
        raise BadTarget(
            f"'{name[:80]}' is not a name of a target. Write --forward URL or --forward NAME=URL; "
            f"a name has lower-case letters, digits and hyphens, {EXAMPLE}."
        )
    _check_url(name, url)
    return Target(name, url.rstrip("/"))


def _check_url(name: str, url: str) -> None:
    """Raise if a URL is invalid or can hold a secret; the message does not repeat it."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in PORTS and bool(parts.hostname)
        is_valid = is_valid and bool(PORTS[parts.scheme] if parts.port is None else parts.port)
        is_valid = is_valid and not (url.startswith(GRPC) and parts.path.strip("/"))
    except ValueError:
        is_valid = False
    if not is_valid:
        raise BadTarget(
            f"The URL of the target '{name}' is not valid: it starts with http:// or https:// and "
            f"a host, or is grpc://HOST:PORT or grpcs://HOST:PORT, {EXAMPLE}."
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise BadTarget(
            f"The URL of the target '{name}' has a user, a password, a query or a fragment, which "
            f"logs would show. Pass secrets as headers, in {Target(name, url).variable}."
        )


def require_others(targets: Iterable[Target], ports: Container[int]) -> None:
    """Check that no target is this collector, which would store its own requests for ever.

    Args:
        ports: those on which this collector listens.

    Raises:
        BadTarget: a target is this collector.
    """
    for target in targets:
        parts = urlsplit(target.url)
        port = parts.port or PORTS[parts.scheme]
        if port in ports and _is_this_machine(str(parts.hostname)):
            raise BadTarget(
                f"The target '{target.name}', {target.url}, is this collector itself. Name another "
                "endpoint."
            )


def _is_this_machine(host: str) -> bool:
    """Return whether a host name has an address of this machine: only those can be bound."""
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with closing(socket.socket(family, kind)) as probe, suppress(OSError):
                probe.bind(address)
                return True
    return False
