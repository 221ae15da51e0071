"""Signed keys: JSON web tokens that a secret signs and verifies without a list of keys.

* The key of an attempt is an agent's. The store accepts telemetry of its identity with it; the
  gateway answers calls of its policy, with its sampling.
* The other keys are those of ltrain's own processes, of the store's owner and of workers.
* A key is valid until it expires, or its secret changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from ltrain_instrument.allow import Allow, ConstrainedCalls
from ltrain_instrument.clock import Deadline
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.identity import Identity

ALGORITHM = "HS256"
ADMIN_SECONDS = 3600.0
MAX_CACHED_KEYS = 4096
"""Number of verified keys in the cache: an attempt sends all its spans and calls with one key."""


class Kind(StrEnum):
    """The purpose of a signed key."""

    ATTEMPT = "ingest"
    """Sends the telemetry of an agent, and calls its policy."""
    SERVICE = "service"
    """Sends the telemetry of an ltrain process."""
    OWNER = "owner"
    """Allows everything in a store: who can read the store's secret is its owner."""
    ADMIN = "admin"
    """Publishes policy versions at a gateway, and offers attempts to workers."""
    WORKER = "worker"
    """Takes attempts from a gateway and returns their results."""


class InvalidKey(LtrainError, ValueError):
    """The secret did not sign the key, or its content is invalid."""


class ExpiredKey(InvalidKey):
    """The key has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptKey:
    """The content of an agent's key."""

    identity: Identity
    """The rollout that the agent may record, or, without a rollout, the run."""
    rewards: bool = False
    """Whether the agent may record evaluations of its own rollout."""
    policy: str = ""
    """The policy that answers, whatever model the agent names; '' if the key allows no calls."""
    sampling: dict[str, float] = field(default_factory=dict)
    """Sampling imposed on every call; missing parameters are neutral. Empty: nothing is imposed."""
    policy_sampling: dict[str, dict[str, float]] = field(default_factory=dict)
    """The sampling of calls of these policies, in place of `sampling`."""
    allow: tuple[Allow, ...] = ()
    """Untrainable request features that calls in mode `train` may use."""
    constrained: ConstrainedCalls = "masked"
    """How calls with structured output are sampled: with the server's masks, without them and with
    a description in the prompt, or, in mode `train`, not at all."""
    pin_version: bool = False
    """Whether calls are refused when the version of the attempt's first call is gone."""
    max_calls: int = 0
    """Answered calls after which further calls are refused; 0: no limit."""
    max_tokens: int = 0
    """Sampled tokens after which further calls are refused; 0: no limit."""
    expires: Deadline

    def __post_init__(self) -> None:
        if not (self.identity.rollout or self.identity.run):
            raise ValueError("A bound key needs the id of its rollout, or of its run.")

    def sampling_of(self, policy: str) -> dict[str, float]:
        """Return the sampling imposed on calls of a policy."""
        return self.policy_sampling.get(policy, self.sampling)

    @property
    def attributes(self) -> dict[str, str]:
        """The identity as attributes of a record."""
        return {name: str(value) for name, value in self.identity.attributes().items()}

    def sign(self, secret: str) -> str:
        """Return the key."""
        content = {each.name: getattr(self, each.name) for each in fields(self)}
        expires = content.pop("expires")
        return _encode(secret, Kind.ATTEMPT, expires, content | {"identity": self.attributes})

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        """Parse the content of a signed key."""
        values = {each.name: content[each.name] for each in fields(cls) if each.name in content}
        values["identity"] = Identity.from_attributes(content["identity"])
        values["allow"] = tuple(map(Allow, content.get("allow", ())))
        return cls(**{**values, "expires": _read_deadline(content)})


@dataclass(frozen=True, slots=True)
class SignedKey:
    """The content of any signed key."""

    kind: Kind
    expires: Deadline
    attempt: AttemptKey | None = None
    """The content of an agent's key; None for other kinds."""


def sign_bound(secret: str, identity: Identity, seconds: float, *, rewards: bool = False) -> str:
    """Return a key that allows sending spans of `identity`'s rollout for `seconds`.

    Without a rollout it allows spans of any rollout of `identity`'s run.

    Raises:
        ValueError: the identity names neither a rollout nor a run.
    """
    key = AttemptKey(identity=identity, rewards=rewards, expires=Deadline.after(seconds))
    return key.sign(secret)


def sign_service(secret: str, seconds: float) -> str:
    """Return a key with which an ltrain process sends its spans, for `seconds`."""
    return sign_kind(secret, Kind.SERVICE, seconds)


def sign_owner(secret: str, seconds: float) -> str:
    """Return a key that allows the store's owner everything, for `seconds`."""
    return sign_kind(secret, Kind.OWNER, seconds)


def sign_admin(secret: str) -> str:
    """Return a key that publishes versions and offers attempts to workers, for an hour."""
    return sign_kind(secret, Kind.ADMIN, ADMIN_SECONDS)


def sign_kind(secret: str, kind: Kind, seconds: float) -> str:
    """Return a key of a kind that is not an agent's, for `seconds`."""
    return _encode(secret, kind, Deadline.after(seconds), {})


def verify_key(secret: str, key: str) -> SignedKey:
    """Return the content of a key.

    Raises:
        ExpiredKey: it has expired.
        InvalidKey: the secret did not sign it, or its content is invalid.
    """
    signed = _decode(secret, key)
    if signed.expires.left <= 0:
        raise ExpiredKey("the key has expired")
    return signed


def _encode(secret: str, kind: Kind, expires: Deadline, content: Mapping[str, object]) -> str:
    filled = {name: value for name, value in content.items() if value}
    deadline = {"exp": expires.wall, "boot": expires.boot, "until": expires.monotonic}
    content = {"kind": str(kind), **deadline, **filled}
    return str(_jwt().encode(content, secret, algorithm=ALGORITHM))


@lru_cache(MAX_CACHED_KEYS)
def _decode(secret: str, key: str) -> SignedKey:
    jwt = _jwt()
    # PyJWT would read `exp` in whole seconds, and a cached key expires as well
    options = {"require": ["exp"], "verify_exp": False}
    try:
        content = jwt.decode(key, secret, algorithms=[ALGORITHM], options=options)
        kind, expires = Kind(content["kind"]), _read_deadline(content)
        attempt = AttemptKey.from_content(content) if kind is Kind.ATTEMPT else None
    except (jwt.InvalidTokenError, KeyError, TypeError, ValueError) as error:
        raise InvalidKey(str(error)) from error
    return SignedKey(kind, expires, attempt)


def _read_deadline(content: Mapping[str, Any]) -> Deadline:
    boot, until = str(content.get("boot", "")), float(content.get("until", 0.0))
    return Deadline(float(content["exp"]), boot, until)


def _jwt() -> Any:
    # importing it takes 60 ms, which a store without signed keys does not need
    import jwt

    return jwt
