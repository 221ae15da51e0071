"""Keys with roles: who may put spans in, read them with SQL, or do both.

* A made key is random and shown once; the store's folder has its digest in a file beside it, which
  only its owner can read. While that file is there, every request needs a key.
* A bound key is signed with the store's secret, so that a runner makes one for each attempt without
  asking the store: it puts in spans of one rollout, or of one run, until it expires, and nothing
  else. A process of ltrain on the store's machine signs its own service key the same way, and a
  command of the store's owner an owner's key.
* A key that a request shows is checked, also where no request needs one.
* A key is never written to a log or an answer.
"""

import contextlib
import fcntl
import json
import os
import secrets
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from ltrain_collector.asgi import Refused
from ltrain_collector.bound_keys import Kind, Signed, secret_file, sign, store_secret, verified
from ltrain_collector.grants import Grant, Role
from ltrain_collector.secret import write_private
from ltrain_instrument.attributes import ATTEMPT_ID, ROLLOUT_ID, RUN_ID
from ltrain_instrument.errors import BadSetting, LtrainError
from ltrain_instrument.identity import Identity
from ltrain_instrument.private import make_private
from ltrain_instrument.settings import STORE_SECRET

KNOWN_KEYS = 4096
"""Verified keys that are remembered, by their secret: an attempt sends all its spans with one."""

UNBOUND = {Kind.SERVICE: Role.SERVICE, Kind.OWNER: Role.ADMIN}
"""The roles of signed keys that are bound to no rollout and no run."""


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key as its file has it."""

    id: str
    role: Role
    digest: str
    created: float
    """Unix seconds."""
    note: str = ""


class NoSuchKey(LtrainError, LookupError):
    """A key that is to be revoked and is not there."""


class BadKeys(Refused):
    """A file of keys that cannot be read: who asks meanwhile hears so with HTTP's status 503."""


def _ignore() -> None:
    """Let damage be raised only."""


class Keys:
    """The keys of one store; usable from any thread, and from several processes."""

    def __init__(self, store: Path, on_damage: Callable[[], None] = _ignore) -> None:
        """`store` is the store's folder, which need not be there yet.

        Args:
            on_damage: is called whenever a request finds the keys damaged.
        """
        self._store = store
        self._on_damage = on_damage
        self._file = store.with_name(f"{store.name}.keys.json")
        self._stamp: tuple[int, int] | None = None
        self._made: dict[str, MadeKey] = {}
        self._bound: dict[tuple[str, str], tuple[float, Grant]] = {}
        self._guarded = False

    @property
    def guarded(self) -> bool:
        """Whether a request needs a key; once it did, it always does."""
        self._renew()
        return self._guarded

    def admit(self, headers: Mapping[str, str], fields: Mapping[str, str] | None = None) -> Grant:
        """Return what the key of a request allows.

        Args:
            headers: names in lower case; of gRPC the metadata.
            fields: parameters of the URL, where a password may stand in them.

        Raises:
            Refused: 401 when there is none, 403 when it is unknown, revoked or expired.
        """
        key = _shown(headers, fields or {})
        if not key:
            raise Refused(401, "This needs a key: 'Authorization: Bearer KEY'. `ltrain key make`.")
        grant = self._signed(key) if key.count(".") == 2 else self._made_grant(key)
        if grant is None:
            raise Refused(403, "This key is not known here, was revoked, or has expired.")
        return grant

    def enter(
        self, headers: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> Grant | None:
        """Return what a request may do; None where it shows no key and needs none: all, from this
        machine.

        Raises:
            Refused: when it may not come in, or shows a key that is unknown, revoked or expired.
        """
        if self.guarded or _shown(headers, fields or {}):
            return self.admit(headers, fields)
        return None

    def ingesting(self, headers: Mapping[str, str]) -> Grant | None:
        """Return what a request that brings spans may do; as `enter`.

        Raises:
            Refused: when it may not come in, or its key is for something else.
        """
        grant = self.enter(headers)
        if grant is not None and not grant.ingests:
            raise Refused(403, f"A key of role '{grant.role}' does not put spans in.")
        return grant

    def reading(self, headers: Mapping[str, str]) -> Grant | None:
        """Return what a request that reads may do; as `enter`.

        Raises:
            Refused: when it may not come in, or its key is for something else.
        """
        grant = self.enter(headers)
        if grant is not None and not grant.reads:
            raise Refused(403, f"A key of role '{grant.role}' reads nothing.")
        return grant

    def make(self, role: Role, note: str = "") -> tuple[str, MadeKey]:
        """Make a key and return it, for the only time."""
        key = "lt_" + secrets.token_urlsafe(32)
        digest = _digest(key)
        made = MadeKey(digest[:8], role, digest, time.time(), note)
        with self._alone():
            self._write([*self.all(), made])
        return key, made

    def all(self) -> list[MadeKey]:
        """Return the made keys, the oldest first."""
        self._renew()
        return sorted(self._made.values(), key=lambda key: key.created)

    def revoke(self, id: str) -> None:
        """Refuse a key from the next request on.

        Raises:
            NoSuchKey: when there is none of this id.
        """
        with self._alone():
            keys = self.all()
            left = [key for key in keys if key.id != id]
            if len(left) == len(keys):
                known = ", ".join(key.id for key in keys) or "none"
                raise NoSuchKey(f"There is no key '{id}' for {self._store}. There is: {known}.")
            self._write(left)

    def sign(self, identity: Identity, seconds: float, *, rewards: bool = False) -> str:
        """Return a key that puts in spans of `identity`'s rollout, or run, for `seconds`."""
        return sign(store_secret(self._store), identity, seconds, rewards=rewards)

    def _renew(self) -> None:
        """Read the file where it has changed."""
        try:
            found = self._file.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._file.is_symlink():  # to a file that is gone
                raise self._damaged(error) from error
            self._made, self._stamp = {}, None
            return
        except OSError as error:
            raise self._damaged(error) from error
        self._guarded = True
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            self._made, self._stamp = {key.digest: key for key in self._rows()}, stamp

    def _rows(self) -> list[MadeKey]:
        try:
            rows = json.loads(self._file.read_text())
            if not isinstance(rows, list):
                raise ValueError("it is not a list of keys")
            return [MadeKey(**{**row, "role": Role(row["role"])}) for row in rows]
        except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> BadKeys:
        self._on_damage()
        why = error.strerror if isinstance(error, OSError) else error
        return BadKeys(
            503,
            f"The store's keys, in the file {self._file.name} beside its folder, cannot be read "
            f"({why}), so nobody is served: put the file back, or move it away and make new keys "
            "with `ltrain key make`.",
        )

    def _made_grant(self, key: str) -> Grant | None:
        self._renew()
        made = self._made.get(_digest(key))
        return Grant(made.role, made.id) if made else None

    def _signed(self, key: str) -> Grant | None:
        secret = self._secret()
        known = self._bound.get((secret, key))
        if known is None:
            found = verified(secret, key)
            if found is None:
                return None
            grant = _granted(found)
            known = (found.expires, grant)
            while len(self._bound) >= KNOWN_KEYS:
                self._bound.pop(next(iter(self._bound)), None)
            self._bound[secret, key] = known
        expires, grant = known
        return grant if expires > time.time() else None

    def _secret(self) -> str:
        """Return the secret that signed keys are verified with now.

        Raises:
            BadKeys: when it cannot be read.
        """
        try:
            return store_secret(self._store)
        except (BadSetting, OSError) as error:
            self._on_damage()
            why = f" ({error.strerror})" if isinstance(error, OSError) else ""
            raise BadKeys(
                503,
                f"The store's secret cannot be read, or is none{why}, so no signed key is known: "
                f"mend {STORE_SECRET.name} or the file {secret_file(self._store).name} beside the "
                "store's folder, or remove it and ltrain makes another.",
            ) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from writing in between."""
        make_private(self._file.parent)
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, keys: list[MadeKey]) -> None:
        made = self._file.with_name(f".{self._file.name}.{os.getpid()}.{secrets.token_hex(4)}")
        write_private(made, json.dumps([asdict(key) for key in keys], indent=1) + "\n")
        os.replace(made, self._file)


def _shown(headers: Mapping[str, str], fields: Mapping[str, str]) -> str:
    """Return the key from where OTLP and ClickHouse's clients put theirs."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer":
        return rest
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            return b64decode(rest, validate=True).decode().partition(":")[2]
    return headers.get("x-clickhouse-key") or fields.get("password", "")


def _granted(key: Signed) -> Grant:
    if key.kind in UNBOUND:
        return Grant(UNBOUND[key.kind], str(key.kind))
    attempt = filter(None, map(key.identity.get, (ROLLOUT_ID, ATTEMPT_ID)))
    name = ".".join(attempt) or key.identity[RUN_ID]
    return Grant(Role.INGEST, name, key.identity, key.rewards)


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()
