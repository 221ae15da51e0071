"""Secrets that sign keys: from a setting, else from a file created on first use."""

import contextlib
import secrets
from pathlib import Path

from ltrain_instrument.errors import BadSetting
from ltrain_instrument.files import OWNER_FILE, create_file
from ltrain_instrument.settings import Setting

ALGORITHM = "HS256"
MIN_SECRET_LENGTH = 32
"""Characters; HS256 requires as many bytes as its digest has (RFC 7518, section 3.2)."""


def shared_secret(whose: str, setting: Setting[str], path: Path) -> str:
    """Return the secret of `setting`, else of the file `path`, which is created on first use.

    Args:
        whose: the subject of an error message, e.g. "The store's secret".

    Raises:
        BadSetting: the secret is shorter than 32 characters, or not text.
        OSError: the file cannot be read or created.
    """
    configured = setting.read()
    try:
        secret = configured or _file_secret(path)
    except UnicodeDecodeError as error:
        raise BadSetting(
            f"{whose} in {path} is not text. Remove the file and ltrain makes another."
        ) from error
    if len(secret) < MIN_SECRET_LENGTH:
        where = setting.name if configured else str(path)
        raise BadSetting(
            f"{whose} in {where} has {len(secret)} characters; it needs at least "
            f"{MIN_SECRET_LENGTH}. Remove it and ltrain makes another."
        )
    return secret


def _file_secret(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    create_file(path, secrets.token_hex(32), OWNER_FILE)  # if no other process was first
    return path.read_text().strip()
