"""The secret of a store, which signs keys: LTRAIN_STORE_SECRET, else a file beside its folder."""

import contextlib
import os
import secrets
from pathlib import Path

from ltrain_instrument.errors import BadSetting
from ltrain_instrument.files import OWNER_FILE, create_file
from ltrain_instrument.settings import STORE_SECRET

MIN_SECRET_LENGTH = 32
"""Characters; HS256 requires as many bytes as its digest has (RFC 7518, section 3.2)."""


def store_secret(store: Path) -> str:
    """Return the secret of LTRAIN_STORE_SECRET, else of the file beside the store.

    The file is created on first use.

    Raises:
        BadSetting: the secret is shorter than 32 characters, or not text.
        OSError: the file cannot be read or created.
    """
    configured, path = STORE_SECRET.read(), secret_file(store)
    try:
        secret = configured or _file_secret(path)
    except UnicodeDecodeError as error:
        raise BadSetting(
            f"The store's secret in {path} is not text. Remove the file and ltrain makes another."
        ) from error
    if len(secret) < MIN_SECRET_LENGTH:
        raise BadSetting(
            f"The store's secret in {STORE_SECRET.name if configured else path} has {len(secret)} "
            f"characters; it needs at least {MIN_SECRET_LENGTH}. Remove it and ltrain makes "
            "another."
        )
    return secret


def existing_secret(store: Path) -> str | None:
    """Return the secret as `store_secret` does, or None if this user can read none.

    Raises:
        BadSetting: the secret is shorter than 32 characters, or not text.
    """
    if STORE_SECRET.read() or os.access(secret_file(store), os.R_OK):
        return store_secret(store)
    return None


def secret_file(store: Path) -> Path:
    """Return the file with the secret of the store in a folder."""
    return store.with_name(f"{store.name}.secret")


def _file_secret(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    create_file(path, secrets.token_hex(32), OWNER_FILE)  # if no other process was first
    return path.read_text().strip()
