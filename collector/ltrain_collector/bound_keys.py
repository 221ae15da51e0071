"""Signed keys: an agent's, bound to its rollout or run, those of ltrain's own processes, and the
owner's.

They are signed with the store's secret, expire, and are checked without a list.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ltrain_collector.secret import ALGORITHM, shared_secret
from ltrain_instrument.attributes import ROLLOUT_ID, RUN_ID
from ltrain_instrument.identity import Identity
from ltrain_instrument.settings import STORE_SECRET


class Kind(StrEnum):
    """What a signed key is for."""

    INGEST = "ingest"
    """Bound: an agent's spans."""
    SERVICE = "service"
    """The spans of a process of ltrain."""
    OWNER = "owner"
    """Everything: whoever can read the store's secret is its owner."""


@dataclass(frozen=True, slots=True)
class Signed:
    """The content of a signed key."""

    kind: Kind
    identity: Mapping[str, str]
    """Attributes by their names; empty but for an agent."""
    rewards: bool
    expires: float
    """Unix seconds."""


def sign(secret: str, identity: Identity, seconds: float, *, rewards: bool = False) -> str:
    """Return a key that puts in spans of `identity`'s rollout, for `seconds`, and nothing else.

    Without a rollout it puts in spans of any rollout of `identity`'s run.

    Raises:
        ValueError: when the identity names neither a rollout nor a run.
    """
    if not (identity.rollout or identity.run):
        raise ValueError("A bound key needs the id of its rollout, or of its run.")
    carried = {name: str(value) for name, value in identity.attributes().items()}
    return _encoded(secret, Kind.INGEST, seconds, identity=carried, rewards=rewards)


def sign_service(secret: str, seconds: float) -> str:
    """Return a key by which a process of ltrain puts its spans in, for `seconds`."""
    return _encoded(secret, Kind.SERVICE, seconds)


def sign_owner(secret: str, seconds: float) -> str:
    """Return a key by which the store's owner does all, for `seconds`."""
    return _encoded(secret, Kind.OWNER, seconds)


def store_secret(store: Path) -> str:
    """Return the secret of LTRAIN_STORE_SECRET, else of the file beside the store.

    The file is made on first use.

    Raises:
        BadSetting: when it is shorter than 32 characters, or no text.
    """
    return shared_secret("The store's secret", STORE_SECRET, secret_file(store))


def known_secret(store: Path) -> str | None:
    """Return the secret as `store_secret` does; None where there is none yet, or it is another's.

    Raises:
        BadSetting: when it is shorter than 32 characters, or no text.
    """
    if STORE_SECRET.read() or os.access(secret_file(store), os.R_OK):
        return store_secret(store)
    return None


def secret_file(store: Path) -> Path:
    """Return where the secret of the store in a folder is kept."""
    return store.with_name(f"{store.name}.secret")


def verified(secret: str, key: str) -> Signed | None:
    """Return a key's content; None where this secret did not sign it, or it has expired."""
    jwt = _jwt()
    try:
        content: dict[str, Any] = jwt.decode(
            key, secret, algorithms=[ALGORITHM], options={"require": ["exp"]}
        )
    except jwt.InvalidTokenError:
        return None
    expires = float(content["exp"])
    if (kind := content.get("kind")) in (Kind.SERVICE, Kind.OWNER):
        return Signed(Kind(kind), {}, False, expires)
    identity = content.get("identity")
    if kind != Kind.INGEST or not isinstance(identity, dict):
        return None
    carried = {str(name): str(value) for name, value in identity.items()}
    if not (carried.get(ROLLOUT_ID) or carried.get(RUN_ID)):
        return None
    return Signed(Kind.INGEST, carried, content.get("rewards") is True, expires)


def _encoded(secret: str, kind: Kind, seconds: float, **content: object) -> str:
    content |= {"kind": str(kind), "exp": int(time.time() + seconds)}
    return str(_jwt().encode(content, secret, algorithm=ALGORITHM))


def _jwt() -> Any:
    # 60 ms to import, which a store without bound keys need not pay
    import jwt

    return jwt
