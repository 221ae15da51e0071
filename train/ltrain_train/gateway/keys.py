"""Keys at the gateway: signed with the secret of its home's store, verified without a store.

* The key of an attempt is valid until it expires or the attempt is closed.
* An admin key may publish policy versions and offer attempts to workers. It is valid for an hour
  and never reaches an agent.
* A worker key may take attempts and return their results. `ltrain worker-key` prints one.

Production traffic needs a key of the store, if the store has keys or other machines reach the
gateway.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ltrain_collector.access import (
    AttemptKey,
    ExpiredKey,
    InvalidKey,
    Keys,
    Kind,
    verify_key,
)
from ltrain_collector.errors import HttpError
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.machine import is_loopback
from ltrain_instrument.settings import STORE_SECRET
from ltrain_train.store import store_folder


class BadKey(LtrainError, PermissionError):
    """A key is missing, expired, of another gateway or of another kind."""


class OpenToAll(LtrainError, PermissionError):
    """Other machines could call the policy, and the store has no keys."""


def production_keys(home: Path, host: str) -> Keys | None:
    """Return the keys that production traffic needs at a gateway on the address `host`.

    A store on another machine has none that this process can read: a gateway for other machines
    uses those of the home.

    Raises:
        OpenToAll: when other machines would need no key.
    """
    folder = store_folder(home)
    if is_loopback(host):
        return Keys(folder) if folder else None
    keys = Keys(folder := folder or home / "store")
    if keys.requires_key:
        return keys
    raise OpenToAll(
        f"A gateway without keys is served only on this machine, not on '{host}'. Make a key with "
        f"`ltrain key make ingest --dir {folder}`, which every call of /v1 then needs, or remove "
        "--host."
    )


def admit_production(keys: Keys | None, headers: Mapping[str, str]) -> None:
    """Check the key of a production call, if the store has keys.

    Raises:
        BadKey: when it is missing, or bound to a rollout or a run.
    """
    if keys is None or not keys.requires_key:
        return
    try:
        key = call_key(headers)
        grant = keys.require_key({"authorization": f"Bearer {key}", **headers} if key else headers)
    except HttpError as error:
        raise BadKey(
            f"{error} This store requires keys, so /v1 needs a key of any role: "
            "'Authorization: Bearer KEY'."
        ) from error
    if grant.bound:
        raise BadKey(
            "A key that is bound to a rollout or a run is not accepted at /v1. Use the base URL "
            "and the key that the runner passed to the attempt."
        )


@dataclass(frozen=True, slots=True)
class Keyring:
    """Verifies the keys that a secret signed."""

    secret: str = field(repr=False)

    def verify_attempt(self, key: str | None) -> AttemptKey:
        """Return the content of an attempt's key; BadKey if it allows no calls."""
        attempt = self.verify(key, Kind.ATTEMPT)
        if attempt is None or not attempt.policy:
            raise BadKey(
                "This key allows no calls of a policy: it is of a run, or was made by `ltrain key "
                "make`. Use the key that the runner passed to the attempt."
            )
        return attempt

    def verify(self, key: str | None, kind: Kind) -> AttemptKey | None:
        """Check that a key is valid and of a kind, and return its content if it is an agent's."""
        name = _NAMES.get(kind, kind)
        if not key:
            raise BadKey(f"This route needs a key of kind {name}: 'Authorization: Bearer <key>'.")
        try:
            signed = verify_key(self.secret, key)
        except ExpiredKey as error:
            hint = _HINTS.get(kind, "Use a new one.")
            raise BadKey(f"This {name} key has expired. {hint}") from error
        except InvalidKey as error:
            hint = _HINTS[kind] if kind is Kind.WORKER else ANOTHER_HOME
            raise BadKey(
                f"This gateway has not signed this {name} key ({error}). {hint}"
            ) from error
        if signed.kind is not kind:
            raise BadKey(
                f"This route needs a key of kind {name}; the request has one of kind "
                f"{_NAMES.get(signed.kind, signed.kind)}."
            )
        return signed.attempt


ANOTHER_HOME = (
    "It may be of another LTRAIN_HOME: use the home of the gateway or its "
    f"{STORE_SECRET.name}, or start another gateway with `ltrain serve --port 8001` and set "
    "LTRAIN_GATEWAY=http://127.0.0.1:8001."
)
_NAMES = {Kind.ATTEMPT: "rollout"}
_HINTS = {
    Kind.ATTEMPT: "Let the runner start a new attempt.",
    Kind.WORKER: "`ltrain worker-key` prints one where the gateway runs, with its LTRAIN_HOME.",
}
"""How to get another key, by its kind."""


KEY_HEADERS = ("x-api-key", "x-goog-api-key")
"""Headers with the key of Anthropic's and of Google's clients."""


def call_key(headers: Mapping[str, str]) -> str | None:
    """Return the key of a call; clients of some APIs have a header of their own for it."""
    others = (headers.get(name) for name in KEY_HEADERS)
    return bearer_key(headers.get("authorization")) or next(filter(None, others), None)


def bearer_key(authorization: str | None) -> str | None:
    """Return the key of an `Authorization: Bearer` header; None if there is none."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None
