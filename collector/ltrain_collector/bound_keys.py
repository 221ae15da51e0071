"""Signed keys: an agent's, bound to its rollout or run, and those of ltrain's own processes.

They are signed with the store's secret, expire, and are checked without a list.
"""

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


@dataclass(frozen=True, slots=True)
class Signed:
    """The content of a signed key."""

    kind: Kind
    identity: Mapping[str, str]
    """Attributes by their names; empty for a service."""
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


def store_secret(store: Path) -> str:
    """Give the secret of LTRAIN_STORE_SECRET, else of the file beside the store, made on first use.

    Raises:
        BadSetting: when it is shorter than 32 characters.
    """
    path = store.with_name(f"{store.name}.secret")
    return shared_secret("The store's secret", STORE_SECRET, path)


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
    if content.get("kind") == Kind.SERVICE:
        return Signed(Kind.SERVICE, {}, False, expires)
    identity = content.get("identity")
    if content.get("kind") != Kind.INGEST or not isinstance(identity, dict):
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
