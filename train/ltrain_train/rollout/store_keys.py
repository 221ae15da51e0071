"""Keys of the store for agents: with its own, an attempt tells of itself and of nothing else.

There are some where the store's secret can be read: LTRAIN_STORE_SECRET, or, where keys were made
for the store's folder, the file beside it. An agent then finds in its environment neither ltrain's
own key nor a secret, and its spans wait in a folder of their own: others send with other keys.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

from ltrain_collector.bound_keys import sign, store_secret
from ltrain_collector.dsn import Folder, Server, parse
from ltrain_collector.keys import Keys
from ltrain_instrument import loopback
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.identity import Identity
from ltrain_instrument.settings import GATEWAY_SECRET, STORE, STORE_SECRET

HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"

SECRETS = (STORE.name, STORE_SECRET.name, GATEWAY_SECRET.name)
"""Variables of ltrain's own processes that hold a secret, or a key that reads."""

WITHHELD = (
    *(f"OTEL_EXPORTER_OTLP_{signal}_HEADERS" for signal in ("TRACES", "LOGS", "METRICS")),
    *SECRETS,
)


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """Signs the keys of attempts."""

    secret: str = field(repr=False)
    home: Path
    rewards: bool
    """Whether an agent may say what its own rollout is worth."""

    @classmethod
    def of(cls, home: Path, *, rewards: bool) -> Self | None:
        """Give those of the store that runs write to; None where it has none, or no secret is here.

        Raises:
            BadSetting: when the secret is too short, or may not be read.
        """
        folder = _folder(home)
        if not STORE_SECRET.read() and (folder is None or not Keys(folder).guarded):
            return None
        try:
            secret = store_secret(folder or home / "store")
        except OSError as error:
            raise BadSetting(
                f"The store has keys, but its secret cannot be read: {error}. Set "
                f"{STORE_SECRET.name} to it, so that each attempt gets a key of its own."
            ) from error
        return cls(secret, home, rewards)

    def environ(self, identity: Identity, seconds: float) -> dict[str, str | None]:
        """Give what the process of one attempt finds in its environment, for `seconds`."""
        key = sign(self.secret, identity, seconds, rewards=self.rewards)
        spool = self.home / "agents" / f"{identity.rollout}.{identity.attempt}"
        return {
            **dict.fromkeys(WITHHELD),
            HEADERS: f"Authorization={quote(f'Bearer {key}')}",
            "LTRAIN_HOME": str(spool.resolve()),
        }


def _folder(home: Path) -> Path | None:
    """Give the store's folder; None where it is on another machine."""
    at = parse(STORE.read()) if STORE.read() else None
    if isinstance(at, Server) and at.host not in loopback.NAMES:
        return None
    return (at.path if isinstance(at, Folder) else home / "store").absolute()
