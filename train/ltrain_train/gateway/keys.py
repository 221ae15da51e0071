"""Keys: who a call is for, signed by the gateway's secret, checked without a look at any store.

* A rollout's key carries its identity, its policy and the sampling that the gateway imposes. It is
  valid for one attempt of one rollout, until it expires or the attempt is closed.
* An admin key publishes policy versions; it lives for an hour and never reaches an agent.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import jwt

from ltrain_collector.secret import ALGORITHM, shared_secret
from ltrain_instrument.allow import Allow
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.identity import Identity
from ltrain_instrument.settings import GATEWAY_SECRET, HOME

ADMIN_SECONDS = 3600
KNOWN_KEYS = 4096
"""Verified keys that are remembered: a rollout uses one key for all its calls."""


class BadKey(LtrainError, PermissionError):
    """A key that is missing, not ours, expired, or of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutClaims:
    """What a rollout's key says."""

    identity: Identity
    policy: str
    """The policy that answers, whatever model name the agent asks for."""
    sampling: dict[str, float] = field(default_factory=dict)
    """Imposed on every call, neutral values for what it leaves out; empty imposes nothing."""
    allow: tuple[Allow, ...] = ()
    """What its calls may ask for in mode `train` although it makes them untrainable."""
    expires: float
    """Unix seconds."""


def gateway_secret(home: Path | None = None) -> str:
    """Give the secret of LTRAIN_GATEWAY_SECRET, else of the home's file, made on first use.

    Raises:
        BadSetting: when it is shorter than 32 characters.
    """
    path = (home or HOME.read()) / "gateway.secret"
    return shared_secret("The gateway secret", GATEWAY_SECRET, path)


def sign(secret: str, claims: RolloutClaims) -> str:
    """Give the key of one attempt."""
    identity = {name: value for name, value in asdict(claims.identity).items() if value is not None}
    content: dict[str, Any] = {"kind": "rollout", "identity": identity, "policy": claims.policy}
    content |= {"sampling": claims.sampling, "allow": list(claims.allow)}
    return _encode(secret, content, claims.expires)


def sign_admin(secret: str) -> str:
    """Give a key that may publish, for an hour."""
    return _encode(secret, {"kind": "admin"}, time.time() + ADMIN_SECONDS)


class Keyring:
    """Verifies keys; a key that was verified before costs a dictionary look-up."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._known: dict[str, RolloutClaims] = {}

    def rollout(self, key: str | None) -> RolloutClaims:
        """Give the claims of a rollout's key.

        Raises:
            BadKey: when it is not one, or has expired.
        """
        claims = self._known.get(key or "")
        if claims is None:
            claims = _rollout_claims(_decode(self._secret, key, "rollout"))
            if len(self._known) >= KNOWN_KEYS:
                self._known.pop(next(iter(self._known)))
            self._known[key or ""] = claims
        if claims.expires < time.time():
            raise BadKey("This rollout's key has expired. Ask the runner for a new attempt.")
        return claims

    def admin(self, key: str | None) -> None:
        """Accept an admin key.

        Raises:
            BadKey: when it is not one.
        """
        _decode(self._secret, key, "admin")


def bearer(authorization: str | None) -> str | None:
    """Give the key of an `Authorization: Bearer` header."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def _encode(secret: str, content: dict[str, Any], expires: float) -> str:
    times = {"exp": ceil(expires), "expires": expires}  # PyJWT reads `exp` in whole seconds
    return jwt.encode({**content, **times}, secret, algorithm=ALGORITHM)


def _decode(secret: str, key: str | None, kind: str) -> dict[str, Any]:
    if not key:
        raise BadKey(f"This route needs a {kind} key: 'Authorization: Bearer <key>'.")
    try:
        content: dict[str, Any] = jwt.decode(
            key, secret, algorithms=[ALGORITHM], options={"require": ["exp"]}
        )
    except jwt.ExpiredSignatureError as error:
        raise BadKey(f"This {kind} key has expired.") from error
    except jwt.InvalidTokenError as error:
        raise BadKey(
            f"This is not a {kind} key of this gateway ({error}). "
            "Runner and gateway must share LTRAIN_HOME or LTRAIN_GATEWAY_SECRET."
        ) from error
    if content.get("kind") != kind:
        raise BadKey(f"This route needs a {kind} key; the key is a {content.get('kind')} key.")
    return content


def _rollout_claims(content: Mapping[str, Any]) -> RolloutClaims:
    return RolloutClaims(
        identity=Identity(**content["identity"]),
        policy=content["policy"],
        sampling=content["sampling"],
        allow=tuple(map(Allow, content.get("allow", ()))),
        expires=content["expires"],
    )
