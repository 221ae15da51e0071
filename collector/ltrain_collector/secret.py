"""Secrets that keys are signed with: a setting's, else those of a file made on first use."""

import contextlib
import os
import secrets
from pathlib import Path

from ltrain_instrument.errors import BadSetting
from ltrain_instrument.private import make_private
from ltrain_instrument.settings import Setting

ALGORITHM = "HS256"
SHORTEST_SECRET = 32
"""Characters; HS256 asks for as many bytes as its digest has (RFC 7518, section 3.2)."""


def shared_secret(whose: str, setting: Setting[str], path: Path) -> str:
    """Return the secret of `setting`, else of the file `path`, made on first use.

    Args:
        whose: the beginning of a sentence about it, e.g. "The store's secret".

    Raises:
        BadSetting: when it is shorter than 32 characters, or no text.
        OSError: when the file cannot be read or made.
    """
    own = setting.read()
    try:
        secret = own or _file_secret(path)
    except UnicodeDecodeError as error:
        raise BadSetting(
            f"{whose} in {path} is no text. Remove it and ltrain makes one."
        ) from error
    if len(secret) < SHORTEST_SECRET:
        where = setting.name if own else str(path)
        raise BadSetting(
            f"{whose} in {where} has {len(secret)} characters; it needs at least "
            f"{SHORTEST_SECRET}. Remove it and ltrain makes one."
        )
    return secret


def _file_secret(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    make_private(path.parent)
    made = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    write_private(made, secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):  # another process was first: its secret counts
        os.link(made, path)
    made.unlink()
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Make a file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
