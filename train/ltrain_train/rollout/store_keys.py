"""Keys of the store for agents: an agent's key can write spans of its own attempt or run only.

* A command sends with the key of its attempt. A worker, whose process runs many attempts, gets the
  key of its run.
* The agent's environment contains neither ltrain's own key nor a secret. Unsent spans of an agent
  wait in a folder of their own, because each folder is sent with its own key.
* An evaluation that an agent writes is stored as the agent's: a recipe uses it only with
  `from = "agent"` or `"any"`.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from shutil import rmtree
from typing import Self
from urllib.parse import quote

from ltrain_collector.access import Keys, sign_bound
from ltrain_collector.signals import SIGNALS
from ltrain_instrument.delivery import (
    SUFFIX,
    Authorization,
    SendStatus,
    send_leftover_spans,
    traces_url,
)
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.identity import Identity
from ltrain_instrument.quantity import quantity
from ltrain_instrument.settings import SPOOL, STORE_SECRET
from ltrain_train.sandboxes import recover_spool
from ltrain_train.store import (
    HEADERS_VARIABLE,
    accepts_key,
    collector_secret,
    store_folder,
)

SIGNAL_VARIABLES = tuple(f"OTEL_EXPORTER_OTLP_{signal.name.upper()}_HEADERS" for signal in SIGNALS)

RUN_KEY_SECONDS = 30 * 86400.0
"""Seconds until the key of a run expires; workers are started once for all waves of a run."""
LEFTOVER_TIMEOUT = 5.0
"""Seconds to send the spans that a dead process left; the rest stays on disk."""
LEFTOVER_WAIT = 30.0
"""Seconds that a run waits at its end for attempts that have used up their budget of the minute."""

_logger = logging.getLogger("ltrain.rollouts")


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """Signs the keys of agents."""

    secret: str = field(repr=False)
    home: Path
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """OTLP headers of this process, by environment variable."""
    _unsent: dict[Identity, float] = field(default_factory=dict, repr=False)
    """Ended attempts with spans on disk, and the monotonic seconds at which each may send again."""

    @classmethod
    def from_home(cls, home: Path, environ: Mapping[str, str]) -> Self | None:
        """Return the keys of the store that runs write to; None if its secret is not available."""
        headers = {
            name: environ[name] for name in (HEADERS_VARIABLE, *SIGNAL_VARIABLES) if name in environ
        }
        if any(map(_authorizes, headers.values())) and not STORE_SECRET.read():
            folder = store_folder(home)
            if folder is None or not Keys(folder).requires_key:
                return None
        try:
            secret = collector_secret(home)
        except OSError as error:
            raise BadSetting(
                f"The store's secret cannot be read: {error}. Set {STORE_SECRET.name} to the "
                "secret, so that each attempt gets a key of its own."
            ) from error
        keys = cls(secret, home, headers) if secret else None
        return keys if keys and keys._accepted() else None

    def attempt_environment(self, identity: Identity, key: str) -> dict[str, str | None]:
        """Return the variables of one attempt's process, which sends with the attempt's key."""
        return self._environment(key, self._attempt_home(identity))

    def run_environment(self, name: str) -> dict[str, str | None]:
        """Return the variables of a process that runs attempts of a run."""
        key = sign_bound(self.secret, Identity(run=name), RUN_KEY_SECONDS, rewards=True)
        return self._environment(key, self._agents / name)

    def send_leftovers(self, identity: Identity) -> bool:
        """Send the spans that an ended attempt's process left on disk, with the attempt's key.

        Return whether the collector accepts more, of this attempt or of others. If it has all that
        it will ever accept, the spool is removed; else `send_all_leftovers` sends the rest.
        """
        home = self._attempt_home(identity)
        recover_spool(home)
        key = sign_bound(self.secret, identity, 2 * LEFTOVER_TIMEOUT, rewards=True)
        authorization = Authorization(lambda: f"Bearer {key}")
        result = send_leftover_spans(
            home / SPOOL, timeout=LEFTOVER_TIMEOUT, authorization=authorization
        )
        if result.status is SendStatus.RETRY:
            self._unsent[identity] = time.monotonic() + result.retry_after
            return result.retry_after > 0
        self._unsent.pop(identity, None)
        if result.status is SendStatus.ACCEPTED:
            _remove_spool(home / SPOOL)
        with suppress(OSError):  # files of the agent, or that cannot be read, stay
            home.rmdir()
        return True

    def send_all_leftovers(self, attempts: Iterable[Identity], wait: float = LEFTOVER_WAIT) -> None:
        """Send the leftover spans of these attempts, and those that were not accepted before.

        An attempt over its budget sends again after the collector's `Retry-After`, if that is
        within `wait` seconds. Spans stay on disk when it is later, and while the collector is away.
        """
        self._unsent.update({each: 0.0 for each in attempts if each not in self._unsent})
        end = time.monotonic() + wait
        while self._unsent:
            identity, due = min(list(self._unsent.items()), key=itemgetter(1))
            if due > end:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            if not self.send_leftovers(identity):
                return

    def send_earlier_leftovers(self, rollouts: Iterable[Identity]) -> None:
        """Send the leftover spans of earlier attempts at these rollouts, without a wait.

        A killed run leaves spans, and so does a run whose collector was down. None of the attempts
        may still run.
        """
        by_rollout = {identity.rollout: identity for identity in rollouts}
        folders = list(self._agents.iterdir()) if self._agents.is_dir() else []
        parts = [folder.name.rpartition(".") for folder in folders]
        earlier = [
            replace(by_rollout[rollout], attempt=int(attempt))
            for rollout, _, attempt in parts
            if rollout in by_rollout and attempt.isdecimal()
        ]
        self.send_all_leftovers(earlier, wait=0.0)

    @property
    def _agents(self) -> Path:
        return self.home / "agents"

    def _attempt_home(self, identity: Identity) -> Path:
        return self._agents / f"{identity.rollout}.{identity.attempt}"

    def _environment(self, key: str, home: Path) -> dict[str, str | None]:
        return {
            **{name: _with_key(text, key) for name, text in self.headers.items()},
            HEADERS_VARIABLE: _with_key(self.headers.get(HEADERS_VARIABLE, ""), key),
            "LTRAIN_HOME": str(home.resolve()),
        }

    def _accepted(self) -> bool:
        """Return whether the collector accepts the keys; True if it does not answer."""
        if accepts_key(f"Bearer {sign_bound(self.secret, Identity(run='probe'), 60)}"):
            return True
        _logger.warning(
            "ltrain: agents send with ltrain's own headers, because %s refuses keys signed "
            "with this store's secret. Set %s to the secret of the store that it writes to.",
            traces_url(None),
            STORE_SECRET.name,
        )
        return False


def _remove_spool(folder: Path) -> None:
    """Remove the spool of an ended attempt; what is in it will never be accepted."""
    for reason in ("refused", "damaged"):
        if count := len(list((folder / reason).glob(f"*{SUFFIX}"))):
            _logger.warning(
                "ltrain: attempt %s: %s of spans dropped: %s",
                *(folder.parent.name, quantity(count, "file"), reason),
            )
    rmtree(folder, ignore_errors=True)


def _authorizes(headers: str) -> bool:
    return len(_without_key(headers)) < len(_pairs(headers))


def _with_key(headers: str, key: str) -> str:
    return ",".join([*_without_key(headers), f"Authorization={quote(f'Bearer {key}')}"])


def _without_key(headers: str) -> list[str]:
    names = ("authorization", "x-clickhouse-key")
    return [pair for pair in _pairs(headers) if pair.partition("=")[0].strip().lower() not in names]


def _pairs(headers: str) -> list[str]:
    return [pair for pair in headers.split(",") if pair.strip()]
