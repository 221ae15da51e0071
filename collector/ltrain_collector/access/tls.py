"""The TLS certificate of ports that other machines can reach."""

from dataclasses import dataclass
from pathlib import Path

from ltrain_instrument.errors import LtrainError


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of the certificate and its private key."""

    certificate: Path
    key: Path


class BadTls(LtrainError, ValueError):
    """The files are not a valid certificate and key."""
