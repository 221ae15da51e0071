"""The address of a project on a server: `phoenix://host:port/project`."""

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from ltrain_collector.errors import BadSource
from ltrain_instrument.machine import LOOPBACK_NAMES

SCHEME = re.compile(r"([a-z]+)(?:\+(https?))?://")


@dataclass(frozen=True, slots=True)
class Address:
    """A server and one of its projects."""

    kind: str
    """The platform, such as `phoenix`."""
    url: str
    """The URL of the server, without a slash at the end; '' for the platform's own."""
    project: str
    """'' if the address names none."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address; a server on this machine has http, another one https.

        Raises:
            BadSource: it has a user or password, or a port that is not a number.
        """
        match = SCHEME.match(text)
        assert match is not None, "checked by is_address"
        kind, scheme = match.groups()
        try:
            parts = urlsplit(f"//{text[match.end() :]}")
            host, _ = parts.hostname or "", parts.port
        except ValueError as error:
            raise BadSource(f"'{text}' is no address: {error}.") from error
        if parts.username or parts.password:
            raise BadSource(
                f"The address of {kind}:// has a user or password. Remove it: keys come from "
                "environment variables, which `ltrain import --help` lists."
            )
        folder, _, project = parts.path.strip("/").rpartition("/")
        scheme = scheme or ("http" if host in LOOPBACK_NAMES else "https")
        place = parts.netloc + (f"/{folder}" if folder else "")
        return cls(kind, f"{scheme}://{place}" if host else "", unquote(project))

    def __str__(self) -> str:
        return "/".join((self.url.replace("http", self.kind + "+http", 1), self.project))


def is_address(source: str) -> bool:
    """Return whether a source is a server's address, not a path."""
    return SCHEME.match(source) is not None
