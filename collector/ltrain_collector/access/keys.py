"""Keys with roles: who can send telemetry, read it with SQL, or both.

* A made key is random and shown once; its digest is in a file beside the store's folder that only
  the owner can read. While that file exists, every request needs a key.
* A signed key is verified with the store's secret, so a runner signs the key of an attempt
  without a request to the store.
* A key in a request is always checked, also where no request needs one.
* A key is never written to a log or a response.
"""

import contextlib
import fcntl
import json
import secrets
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from ltrain_collector.access.grants import Grant, Role
from ltrain_collector.access.secrets import secret_file, store_secret
from ltrain_collector.access.signed_keys import (
    InvalidKey,
    Kind,
    SignedKey,
    sign_bound,
    verify_key,
)
from ltrain_collector.errors import HttpError
from ltrain_instrument.attributes import ATTEMPT_ID, ROLLOUT_ID, RUN_ID
from ltrain_instrument.errors import BadSetting, LtrainError
from ltrain_instrument.files import OWNER_FILE, make_private, write_file
from ltrain_instrument.identity import Identity
from ltrain_instrument.settings import STORE_SECRET

SIGNED_ROLES = {
    Kind.ATTEMPT: Role.INGEST,
    Kind.SERVICE: Role.SERVICE,
    Kind.OWNER: Role.ADMIN,
}
"""The roles of signed keys in a store; the store refuses the kinds that it does not name."""


@dataclass(frozen=True, slots=True)
class MadeKey:
    """An entry of the file of made keys."""

    id: str
    role: Role
    digest: str
    created: float
    """Unix seconds."""
    note: str = ""


class NoSuchKey(LtrainError, LookupError):
    """The key to revoke does not exist."""


class BadKeys(HttpError):
    """The file of keys cannot be read: requests get the HTTP status 503."""


class Keys:
    """The keys of one store; usable from any thread, and from several processes."""

    def __init__(self, store: Path, on_damage: Callable[[], None] = lambda: None) -> None:
        """Use the keys of the store's folder `store`, which need not exist yet.

        Args:
            on_damage: called each time a request fails because the keys are damaged.
        """
        self._store = store
        self._on_damage = on_damage
        self._file = store.with_name(f"{store.name}.keys.json")
        self._stamp: tuple[int, int] | None = None
        self._made: dict[str, MadeKey] = {}
        self._file_exists = False

    @property
    def requires_key(self) -> bool:
        """Whether requests need a key; stays true for this process once it was true."""
        self._reload()
        return self._file_exists

    def require_key(
        self, headers: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> Grant:
        """Return what the key of a request allows.

        Args:
            headers: HTTP headers or gRPC metadata, with names in lower case.
            fields: URL parameters, which can contain a password.

        Raises:
            HttpError: 401 without a key, 403 for an unknown, revoked or expired key.
        """
        key = _request_key(headers, fields or {})
        if not key:
            raise HttpError(
                401, "This request needs a key of `ltrain key make`: 'Authorization: Bearer KEY'."
            )
        grant = (
            self._grant_of_signed_key(key) if key.count(".") == 2 else self._grant_of_made_key(key)
        )
        if grant is None:
            raise HttpError(
                403, "This key is unknown, revoked or expired. Make one with `ltrain key make`."
            )
        return grant

    def authenticate(
        self, headers: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> Grant | None:
        """Return what the key of a request allows, or None if it has no key and needs none.

        Raises:
            HttpError: the request needs a key, or its key is unknown, revoked or expired.
        """
        if self.requires_key or _request_key(headers, fields or {}):
            return self.require_key(headers, fields)
        return None

    def authorize_ingest(self, headers: Mapping[str, str]) -> Grant | None:
        """Return what `authenticate` returns, for a request that sends telemetry."""
        grant = self.authenticate(headers)
        if grant is not None and not grant.can_ingest:
            raise HttpError(
                403, f"A key of role '{grant.role}' cannot send. Use an ingest or service key."
            )
        return grant

    def authorize_read(self, headers: Mapping[str, str]) -> Grant | None:
        """Return what `authenticate` returns, for a request that reads."""
        grant = self.authenticate(headers)
        if grant is not None and not grant.can_read:
            raise HttpError(
                403, f"A key of role '{grant.role}' cannot read. Use one of role query or admin."
            )
        return grant

    def make_key(self, role: Role, note: str = "") -> tuple[str, MadeKey]:
        """Make a key, and return it with its entry; only the entry is stored."""
        key = "lt_" + secrets.token_urlsafe(32)
        digest = _digest(key)
        made = MadeKey(digest[:8], role, digest, time.time(), note)
        with self._file_lock():
            self._write([*self.made_keys(), made])
        return key, made

    def made_keys(self) -> list[MadeKey]:
        """Return the made keys, oldest first."""
        self._reload()
        return sorted(self._made.values(), key=lambda key: key.created)

    def revoke_key(self, id: str) -> None:
        """Remove a made key: the next request with it is refused.

        Raises:
            NoSuchKey: no key has this id.
        """
        with self._file_lock():
            keys = self.made_keys()
            remaining = [key for key in keys if key.id != id]
            if len(remaining) == len(keys):
                known = ", ".join(key.id for key in keys) or "none"
                raise NoSuchKey(f"The store {self._store} has no key '{id}'. Its keys: {known}.")
            self._write(remaining)

    def sign_bound(self, identity: Identity, seconds: float, *, rewards: bool = False) -> str:
        """Return a key that allows sending spans of `identity`'s rollout, or run, for `seconds`."""
        return sign_bound(store_secret(self._store), identity, seconds, rewards=rewards)

    def _reload(self) -> None:
        """Read the file again if it has changed."""
        try:
            status = self._file.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._file.is_symlink():  # its target is gone
                raise self._damaged_error(error) from error
            self._made, self._stamp = {}, None
            return
        except OSError as error:
            raise self._damaged_error(error) from error
        self._file_exists = True
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._made, self._stamp = {key.digest: key for key in self._read_file()}, stamp

    def _read_file(self) -> list[MadeKey]:
        try:
            rows = json.loads(self._file.read_text())
            if not isinstance(rows, list):
                raise ValueError("it is not a list of keys")
            return [MadeKey(**{**row, "role": Role(row["role"])}) for row in rows]
        except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
            raise self._damaged_error(error) from error

    def _damaged_error(self, error: Exception) -> BadKeys:
        self._on_damage()
        why = error.strerror if isinstance(error, OSError) else error
        return BadKeys(
            503,
            f"The store's keys, in the file {self._file.name} beside its folder, cannot be read "
            f"({why}), so no request is served. Restore the file, or move it away and make new "
            "keys with `ltrain key make`.",
        )

    def _grant_of_made_key(self, key: str) -> Grant | None:
        self._reload()
        made = self._made.get(_digest(key))
        return Grant(made.role, made.id) if made else None

    def _grant_of_signed_key(self, key: str) -> Grant | None:
        secret = self._secret()
        with contextlib.suppress(InvalidKey):
            return _grant_of(verify_key(secret, key))
        return None

    def _secret(self) -> str:
        """Return the secret that verifies signed keys."""
        try:
            return store_secret(self._store)
        except (BadSetting, OSError) as error:
            self._on_damage()
            why = f" ({error.strerror})" if isinstance(error, OSError) else ""
            raise BadKeys(
                503,
                f"The store's secret is invalid or cannot be read{why}, so no signed key can be "
                f"verified. Fix {STORE_SECRET.name} or the file {secret_file(self._store).name} "
                "beside the store's folder, or remove it and ltrain makes another.",
            ) from error

    @contextlib.contextmanager
    def _file_lock(self) -> Iterator[None]:
        make_private(self._file.parent)
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, keys: list[MadeKey]) -> None:
        text = json.dumps([asdict(key) for key in keys], indent=1) + "\n"
        write_file(self._file, text, OWNER_FILE)


def _request_key(headers: Mapping[str, str], fields: Mapping[str, str]) -> str:
    """Return the key of a request, from where OTLP and ClickHouse clients send it; '' if none."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer":
        return rest
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            return b64decode(rest, validate=True).decode().partition(":")[2]
    return headers.get("x-clickhouse-key") or fields.get("password", "")


def _grant_of(key: SignedKey) -> Grant | None:
    role = SIGNED_ROLES.get(key.kind)
    if role is None:
        return None
    if key.attempt is None:
        return Grant(role, str(key.kind))
    identity = key.attempt.attributes
    attempt = filter(None, map(identity.get, (ROLLOUT_ID, ATTEMPT_ID)))
    name = ".".join(attempt) or identity[RUN_ID]
    return Grant(role, name, identity, key.attempt.rewards)


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()
