"""Keys of the gateway: JSON web tokens signed with its secret, verified without a store.

* A rollout key contains the identity, the policy and the sampling that the gateway imposes. It is
  valid for one attempt of one rollout, until it expires or the attempt is closed.
* An admin key may publish policy versions and offer attempts to workers. It is valid for an hour
  and never reaches an agent.
* A worker key may take attempts and return their results. `ltrain worker-key` prints one.

Production traffic needs a key of the store, if the store has keys or other machines reach the
gateway.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import jwt

from ltrain_collector.access import ALGORITHM, Keys, shared_secret
from ltrain_instrument.allow import Allow
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.identity import Identity
from ltrain_instrument.machine import is_loopback
from ltrain_instrument.settings import GATEWAY_SECRET, HOME
from ltrain_train.store import store_folder

ADMIN_KEY_SECONDS = 3600
CACHED_KEYS = 4096
"""Number of verified keys in the cache; a rollout uses one key for all its calls."""


class BadKey(LtrainError, PermissionError):
    """A key is missing, expired, of another gateway or of another kind."""


class OpenToAll(LtrainError, PermissionError):
    """Other machines could call the policy, and the store has no keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutClaims:
    """The content of a rollout key."""

    identity: Identity
    policy: str
    """The policy that answers, whatever model the agent names."""
    sampling: dict[str, float] = field(default_factory=dict)
    """Sampling imposed on every call; missing parameters are neutral. Empty: nothing is imposed."""
    policy_sampling: dict[str, dict[str, float]] = field(default_factory=dict)
    """The sampling of calls of these policies, in place of `sampling`."""
    allow: tuple[Allow, ...] = ()
    """Untrainable request features that calls in mode `train` may use."""
    pin_version: bool = False
    """Whether calls are refused when the version of the attempt's first call is gone."""
    expires: float
    """Unix seconds."""

    def sampling_of(self, policy: str) -> dict[str, float]:
        """Return the sampling imposed on calls of a policy."""
        return self.policy_sampling.get(policy, self.sampling)


def gateway_secret(home: Path | None = None) -> str:
    """Return LTRAIN_GATEWAY_SECRET, or the secret in the home's file, made on first use.

    Raises:
        BadSetting: when the secret is shorter than 32 characters.
    """
    path = (home or HOME.read()) / "gateway.secret"
    return shared_secret("The gateway secret", GATEWAY_SECRET, path)


def sign_rollout_key(secret: str, claims: RolloutClaims) -> str:
    """Sign the key of one attempt."""
    identity = {name: value for name, value in asdict(claims.identity).items() if value is not None}
    content: dict[str, Any] = {"kind": "rollout", "identity": identity, "policy": claims.policy}
    content |= {"sampling": claims.sampling, "allow": list(claims.allow)}
    content |= {"policy_sampling": claims.policy_sampling} if claims.policy_sampling else {}
    content |= {"pin": True} if claims.pin_version else {}
    return _encode(secret, content, claims.expires)


def sign_admin_key(secret: str) -> str:
    """Sign a key that may publish versions, and offer attempts to workers, for an hour."""
    return _encode(secret, {"kind": "admin"}, time.time() + ADMIN_KEY_SECONDS)


def sign_worker_key(secret: str, seconds: float) -> str:
    """Sign a key with which a worker takes attempts for `seconds`."""
    return _encode(secret, {"kind": "worker"}, time.time() + seconds)


def store_keys(home: Path, host: str) -> Keys | None:
    """Return the keys that production traffic needs at a gateway on the address `host`.

    A store on another machine has none that this process can read: a gateway for other machines
    uses those of the home.
    """
    folder = store_folder(home)
    if folder is None and not is_loopback(host):
        folder = home / "store"
    return Keys(folder) if folder else None


def require_store_keys(home: Path, host: str) -> None:
    """Check that other machines need a key for the calls of `/v1`.

    Raises:
        OpenToAll: when they need none.
    """
    keys = store_keys(home, host)
    if is_loopback(host) or (keys is not None and keys.requires_key):
        return
    raise OpenToAll(
        f"A gateway without keys is served only on this machine, not on '{host}'. Make a key with "
        f"`ltrain key make ingest --dir {store_folder(home) or home / 'store'}`, which every call "
        "of /v1 then needs, or remove --host."
    )


_KEY_HINTS = {
    "worker": "`ltrain worker-key` prints one where the gateway runs, with its LTRAIN_HOME."
}
"""How to get another key, by its kind; runners sign those of other kinds."""


class Keyring:
    """Verifies keys and caches those that it has verified."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._cache: dict[str, RolloutClaims] = {}

    def verify_rollout_key(self, key: str | None) -> RolloutClaims:
        """Return the claims of a rollout key.

        Raises:
            BadKey: when it is not a valid rollout key, or has expired.
        """
        claims = self._cache.get(key or "")
        if claims is None:
            claims = _rollout_claims(_decode(self._secret, key, "rollout"))
            if len(self._cache) >= CACHED_KEYS:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key or ""] = claims
        if claims.expires < time.time():
            raise BadKey("This rollout key has expired. Let the runner start a new attempt.")
        return claims

    def verify_admin_key(self, key: str | None) -> None:
        """Check an admin key.

        Raises:
            BadKey: when it is not a valid admin key.
        """
        _decode(self._secret, key, "admin")

    def verify_worker_key(self, key: str | None) -> None:
        """Check a worker key.

        Raises:
            BadKey: when it is not a valid worker key.
        """
        _decode(self._secret, key, "worker")


def call_key(headers: Mapping[str, str]) -> str | None:
    """Return the key of a call; Anthropic's clients may put it into `x-api-key`."""
    return bearer_key(headers.get("authorization")) or headers.get("x-api-key") or None


def bearer_key(authorization: str | None) -> str | None:
    """Return the key of an `Authorization: Bearer` header; None if there is none."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def _encode(secret: str, content: dict[str, Any], expires: float) -> str:
    times = {"exp": ceil(expires), "expires": expires}  # PyJWT reads `exp` in whole seconds
    return jwt.encode({**content, **times}, secret, algorithm=ALGORITHM)


def _decode(secret: str, key: str | None, kind: str) -> dict[str, Any]:
    if not key:
        raise BadKey(f"This route needs a key of kind {kind}: 'Authorization: Bearer <key>'.")
    try:
        content: dict[str, Any] = jwt.decode(
            key, secret, algorithms=[ALGORITHM], options={"require": ["exp"]}
        )
    except jwt.ExpiredSignatureError as error:
        raise BadKey(
            f"This {kind} key has expired. {_KEY_HINTS.get(kind, 'Use a new one.')}"
        ) from error
    except jwt.InvalidTokenError as error:
        hint = "Runner and gateway must share LTRAIN_HOME or LTRAIN_GATEWAY_SECRET."
        raise BadKey(
            f"This is not a {kind} key of this gateway ({error}). {_KEY_HINTS.get(kind, hint)}"
        ) from error
    if content.get("kind") != kind:
        raise BadKey(
            f"This route needs a key of kind {kind}; the request has one of kind "
            f"{content.get('kind')}."
        )
    return content


def _rollout_claims(content: Mapping[str, Any]) -> RolloutClaims:
    return RolloutClaims(
        identity=Identity(**content["identity"]),
        policy=content["policy"],
        sampling=content["sampling"],
        policy_sampling=content.get("policy_sampling", {}),
        allow=tuple(map(Allow, content.get("allow", ()))),
        pin_version=content.get("pin", False),
        expires=content["expires"],
    )
