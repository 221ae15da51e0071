"""Bound keys: for one rollout, signed with the store's secret, checked without any list."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrain_collector.secret import ALGORITHM, shared_secret
from ltrain_instrument.attributes import ROLLOUT_ID
from ltrain_instrument.identity import Identity
from ltrain_instrument.settings import STORE_SECRET


@dataclass(frozen=True, slots=True)
class Bound:
    """What a bound key says."""

    identity: Mapping[str, str]
    """Attributes by their names."""
    rewards: bool
    expires: float
    """Unix seconds."""


def sign(secret: str, identity: Identity, seconds: float, *, rewards: bool = False) -> str:
    """Give a key that puts spans of `identity`'s rollout in, for `seconds`, and nothing else.

    Raises:
        ValueError: when the identity names no rollout.
    """
    if not identity.rollout:
        raise ValueError("A bound key needs the id of its rollout.")
    jwt = _jwt()
    carried = {name: str(value) for name, value in identity.attributes().items()}
    content = {"kind": "ingest", "identity": carried, "rewards": rewards}
    content["exp"] = int(time.time() + seconds)
    return str(jwt.encode(content, secret, algorithm=ALGORITHM))


def store_secret(store: Path) -> str:
    """Give the secret of LTRAIN_STORE_SECRET, else of the file beside the store, made on first use.

    Raises:
        BadSetting: when it is shorter than 32 characters.
    """
    path = store.with_name(f"{store.name}.secret")
    return shared_secret("The store's secret", STORE_SECRET, path)


def verified(secret: str, key: str) -> Bound | None:
    """Give what a bound key says; None where this secret did not sign it, or it has expired."""
    jwt = _jwt()
    try:
        content: dict[str, Any] = jwt.decode(
            key, secret, algorithms=[ALGORITHM], options={"require": ["exp"]}
        )
    except jwt.InvalidTokenError:
        return None
    identity = content.get("identity")
    if content.get("kind") != "ingest" or not isinstance(identity, dict):
        return None
    carried = {str(name): str(value) for name, value in identity.items()}
    if not carried.get(ROLLOUT_ID):
        return None
    return Bound(carried, content.get("rewards") is True, float(content["exp"]))


def _jwt() -> Any:
    # 60 ms to import, which a store without bound keys need not pay
    import jwt

    return jwt
