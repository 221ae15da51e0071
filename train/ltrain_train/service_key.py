"""The key by which ltrain's own processes send: readers believe a runner and a gateway by it.

It is signed with the store's secret where that can be read: LTRAIN_STORE_SECRET, or the file
beside the store's folder on this machine. Elsewhere OTEL_EXPORTER_OTLP_HEADERS has a key, or there
is none.
"""

import time
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import TracerProvider

from ltrain_collector.bound_keys import sign_service, store_secret
from ltrain_instrument import loopback
from ltrain_instrument.delivery import traces_url
from ltrain_instrument.settings import STORE_SECRET
from ltrain_instrument.telemetry import open_telemetry
from ltrain_train.store_folder import store_folder

SECONDS = 86400.0
"""How long a key is good; a new one is signed after half of it, so a run may take weeks."""


class ServiceKey:
    """The Authorization of a process of ltrain, renewed before it expires."""

    def __init__(self, home: Path) -> None:
        """`home` is where the process has its spool, and a store its folder.

        Raises:
            BadSetting: when the secret is too short.
        """
        self._home = home
        self._text: str | None = None
        self._renew = 0.0
        self()

    def __call__(self) -> str | None:
        """Return what the header says; None where the store's secret cannot be read."""
        if time.time() >= self._renew:
            secret = self._secret()
            if secret is None:
                return None  # the store may not be there yet
            self._text = f"Bearer {sign_service(secret, SECONDS)}"
            self._renew = time.time() + SECONDS / 2
        return self._text

    def _secret(self) -> str | None:
        folder = store_folder(self._home)
        if not STORE_SECRET.read() and not (is_here() and folder and is_there(folder)):
            return None
        try:
            return store_secret(folder or self._home / "store")
        except OSError:  # another user's store
            return None


def is_here() -> bool:
    """Return whether spans go to a collector on this machine."""
    url = traces_url(None)
    return loopback.is_loopback(urlsplit(url if "://" in url else f"http://{url}").hostname or "")


def is_there(folder: Path) -> bool:
    """Return whether a store, or its secret, is in its place."""
    return folder.is_dir() or folder.with_name(f"{folder.name}.secret").exists()


def open_service(service: str, home: Path, *, strict: bool = False) -> TracerProvider:
    """Return the tracer provider of a process of ltrain, which sends with a service key.

    If `strict`, the `end()` of a span that cannot be written raises OSError.

    Raises:
        BadSetting: when a setting cannot be read, or the store's secret is too short.
    """
    return open_telemetry(service, home=home, authorization=ServiceKey(home), strict=strict)
