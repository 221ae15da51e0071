"""Signed keys: an agent's key, bound to its rollout or run, ltrain's service keys and owner keys.

They are signed with the store's secret, expire, and are verified without a list of keys.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ltrain_collector.access.secrets import ALGORITHM, shared_secret
from ltrain_instrument.attributes import ROLLOUT_ID, RUN_ID
from ltrain_instrument.identity import Identity
from ltrain_instrument.settings import STORE_SECRET


class Kind(StrEnum):
    """The purpose of a signed key."""

    INGEST = "ingest"
    """Bound key: sends the spans of an agent."""
    SERVICE = "service"
    """Sends the spans of an ltrain process."""
    OWNER = "owner"
    """Allows everything: who can read the store's secret is its owner."""


@dataclass(frozen=True, slots=True)
class SignedKey:
    """The content of a signed key."""

    kind: Kind
    identity: Mapping[str, str]
    """Attribute values by name; empty unless the key is an agent's."""
    rewards: bool
    expires: float
    """Unix seconds."""


def sign_bound(secret: str, identity: Identity, seconds: float, *, rewards: bool = False) -> str:
    """Return a key that allows sending spans of `identity`'s rollout for `seconds`.

    Without a rollout it allows spans of any rollout of `identity`'s run.

    Raises:
        ValueError: the identity names neither a rollout nor a run.
    """
    if not (identity.rollout or identity.run):
        raise ValueError("A bound key needs the id of its rollout, or of its run.")
    attributes = {name: str(value) for name, value in identity.attributes().items()}
    return _encode(secret, Kind.INGEST, seconds, identity=attributes, rewards=rewards)


def sign_service(secret: str, seconds: float) -> str:
    """Return a key with which an ltrain process sends its spans, for `seconds`."""
    return _encode(secret, Kind.SERVICE, seconds)


def sign_owner(secret: str, seconds: float) -> str:
    """Return a key that allows the store's owner everything, for `seconds`."""
    return _encode(secret, Kind.OWNER, seconds)


def store_secret(store: Path) -> str:
    """Return the secret of LTRAIN_STORE_SECRET, else of the file beside the store.

    The file is created on first use.

    Raises:
        BadSetting: the secret is shorter than 32 characters, or not text.
    """
    return shared_secret("The store's secret", STORE_SECRET, secret_file(store))


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


def verify_key(secret: str, key: str) -> SignedKey | None:
    """Return the content of a key, or None if this secret did not sign it or it has expired."""
    jwt = _jwt()
    try:
        content: dict[str, Any] = jwt.decode(
            key, secret, algorithms=[ALGORITHM], options={"require": ["exp"]}
        )
    except jwt.InvalidTokenError:
        return None
    expires = float(content["exp"])
    if (kind := content.get("kind")) in (Kind.SERVICE, Kind.OWNER):
        return SignedKey(Kind(kind), {}, False, expires)
    identity = content.get("identity")
    if kind != Kind.INGEST or not isinstance(identity, dict):
        return None
    attributes = {str(name): str(value) for name, value in identity.items()}
    if not (attributes.get(ROLLOUT_ID) or attributes.get(RUN_ID)):
        return None
    return SignedKey(Kind.INGEST, attributes, content.get("rewards") is True, expires)


def _encode(secret: str, kind: Kind, seconds: float, **content: object) -> str:
    content |= {"kind": str(kind), "exp": int(time.time() + seconds)}
    return str(_jwt().encode(content, secret, algorithm=ALGORITHM))


def _jwt() -> Any:
    # importing it takes 60 ms, which a store without bound keys does not need
    import jwt

    return jwt
