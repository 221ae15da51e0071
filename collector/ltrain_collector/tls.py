"""A certificate for what is served beyond this machine."""

from dataclasses import dataclass
from pathlib import Path

from ltrain_instrument.errors import LtrainError


@dataclass(frozen=True, slots=True)
class Tls:
    """Files with the certificate and its private key, PEM."""

    certificate: Path
    key: Path


class BadTls(LtrainError, ValueError):
    """Files that are no certificate and key."""
