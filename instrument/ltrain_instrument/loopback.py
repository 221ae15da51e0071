"""Recognises addresses of this machine."""

import ipaddress

NAMES = ("127.0.0.1", "localhost", "::1")
"""Host names of ltrain's own servers on this machine; `is_loopback` recognises more."""


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or an address, is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
