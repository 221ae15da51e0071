"""Keys of the store for agents: with its own, an agent tells of itself and of nothing else.

The store's secret signs them: LTRAIN_STORE_SECRET, or, where store and collector are on this
machine, the file beside the store's folder. A command has the key of its attempt; a worker, whose
process makes many attempts, the key of its run. Either finds in its environment neither ltrain's
own key nor a secret, and its spans wait in a folder of their own: others send with other keys.
What an agent says that its rollout is worth is stored as the agent's word: a recipe takes it only
with `from = "agent"` or `"any"`.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self
from urllib.parse import quote

from ltrain_collector.bound_keys import sign_bound, store_secret
from ltrain_collector.keys import Keys
from ltrain_instrument.delivery import Authorization, traces_url
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.identity import Identity
from ltrain_instrument.leftovers import send_what_is_left
from ltrain_instrument.settings import STORE_SECRET
from ltrain_train.service_key import HEADERS, is_here, is_there, takes
from ltrain_train.store_folder import store_folder

SIGNALS = tuple(f"OTEL_EXPORTER_OTLP_{name}_HEADERS" for name in ("TRACES", "LOGS", "METRICS"))

RUN_SECONDS = 30 * 86400.0
"""How long the key of a run is good: workers are started once for all its waves."""
LEFTOVERS = 5.0
"""Seconds in which a collector may take what a dead process left; the rest stays on disk."""

_logger = logging.getLogger("ltrain.rollouts")


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """Signs the keys of agents."""

    secret: str = field(repr=False)
    home: Path
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What this process sends over OTLP, by the variables that say it."""

    @classmethod
    def of(cls, home: Path, environ: Mapping[str, str]) -> Self | None:
        """Return those of the store that runs write to; None where its secret is elsewhere.

        Raises:
            BadSetting: when the secret is too short, or may not be read.
        """
        folder = store_folder(home)
        headers = {name: environ[name] for name in (HEADERS, *SIGNALS) if name in environ}
        if not STORE_SECRET.read() and not _is_here(folder, headers):
            return None
        try:
            secret = store_secret(folder or home / "store")
        except OSError as error:
            raise BadSetting(
                f"The store's secret cannot be read: {error}. Set {STORE_SECRET.name} to it, so "
                "that each attempt gets a key of its own."
            ) from error
        keys = cls(secret, home, headers)
        return keys if keys._taken() else None

    def attempt(self, identity: Identity, seconds: float) -> dict[str, str | None]:
        """Return what the process of one attempt finds in its environment, for `seconds`."""
        key = sign_bound(self.secret, identity, seconds, rewards=True)
        return self._environ(key, self._attempt_home(identity))

    def run(self, name: str) -> dict[str, str | None]:
        """Return what a process finds that makes attempts of a run."""
        key = sign_bound(self.secret, Identity(run=name), RUN_SECONDS, rewards=True)
        return self._environ(key, self._agents / name)

    def send_what_is_left(self, identity: Identity) -> bool:
        """Send the spans that the process of an ended attempt left on disk, with its own key.

        Return whether the collector has all of them; then the attempt's empty folders are removed.
        """
        home = self._attempt_home(identity)
        key = sign_bound(self.secret, identity, 2 * LEFTOVERS, rewards=True)
        authorization = Authorization(lambda: f"Bearer {key}")
        if not send_what_is_left(home / "spool", timeout=LEFTOVERS, authorization=authorization):
            return False
        with suppress(OSError):  # what was refused or is damaged stays
            (home / "spool").rmdir()
            home.rmdir()
        return True

    def send_all_that_is_left(self, attempts: Iterable[Identity]) -> None:
        """Send what these attempts left, until the collector does not take all of one."""
        for identity in attempts:
            if not self.send_what_is_left(identity):
                return

    def sweep(self, rollouts: Iterable[Identity]) -> None:
        """Send what earlier attempts at these rollouts left, while the collector takes it.

        None of them may run: a run that was killed leaves them, or one whose collector was away.
        """
        wanted = {identity.rollout: identity for identity in rollouts}
        folders = list(self._agents.iterdir()) if self._agents.is_dir() else []
        parts = [folder.name.rpartition(".") for folder in folders]
        self.send_all_that_is_left(
            replace(wanted[rollout], attempt=int(attempt))
            for rollout, _, attempt in parts
            if rollout in wanted and attempt.isdecimal()
        )

    @property
    def _agents(self) -> Path:
        return self.home / "agents"

    def _attempt_home(self, identity: Identity) -> Path:
        return self._agents / f"{identity.rollout}.{identity.attempt}"

    def _environ(self, key: str, home: Path) -> dict[str, str | None]:
        return {
            **{name: _with_key(text, key) for name, text in self.headers.items()},
            HEADERS: _with_key(self.headers.get(HEADERS, ""), key),
            "LTRAIN_HOME": str(home.resolve()),
        }

    def _taken(self) -> bool:
        """Return whether the collector takes its keys; one that is away does not say no."""
        if takes(f"Bearer {sign_bound(self.secret, Identity(run='probe'), 60)}"):
            return True
        _logger.warning(
            "ltrain: agents send with ltrain's own headers, since %s does not take keys signed "
            "with this store's secret. Set %s to the secret of the store it writes to.",
            traces_url(None),
            STORE_SECRET.name,
        )
        return False


def _is_here(folder: Path | None, headers: Mapping[str, str]) -> bool:
    """Return whether spans go to a store of ltrain on this machine, as far as is known."""
    if folder is None or not (is_here() and is_there(folder)):
        return False
    return Keys(folder).requires_key or not any(map(_authorizes, headers.values()))


def _authorizes(headers: str) -> bool:
    return len(_without_key(headers)) < len(_pairs(headers))


def _with_key(headers: str, key: str) -> str:
    return ",".join([*_without_key(headers), f"Authorization={quote(f'Bearer {key}')}"])


def _without_key(headers: str) -> list[str]:
    names = ("authorization", "x-clickhouse-key")
    return [pair for pair in _pairs(headers) if pair.partition("=")[0].strip().lower() not in names]


def _pairs(headers: str) -> list[str]:
    return [pair for pair in headers.split(",") if pair.strip()]
