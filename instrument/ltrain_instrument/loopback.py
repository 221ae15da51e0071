"""This machine, as addresses name it."""

import ipaddress

NAMES = ("127.0.0.1", "localhost", "::1")
"""What ltrain's own servers are asked by; `is_loopback` knows more."""


def is_loopback(host: str) -> bool:
    """Say whether nothing that is sent to `host`, a name or an address, leaves this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
