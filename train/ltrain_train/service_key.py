"""The key by which ltrain's own processes send: readers believe a runner and a gateway by it.

It is signed with the store's secret where that can be read: LTRAIN_STORE_SECRET, or the file
beside the store's folder on this machine. Elsewhere OTEL_EXPORTER_OTLP_HEADERS has a key, or there
is none.
"""

import json
import os
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from opentelemetry.sdk.trace import TracerProvider

from ltrain_collector.bound_keys import sign_service, store_secret
from ltrain_instrument import loopback
from ltrain_instrument.delivery import Authorization, traces_url
from ltrain_instrument.settings import STORE_SECRET
from ltrain_instrument.telemetry import create_tracer_provider
from ltrain_train.errors import StoreOfAnother
from ltrain_train.store_folder import store_folder

SECONDS = 86400.0
"""How long a key is good; a new one is signed after half of it, so a run may take weeks."""
PROBE = 5.0
"""Seconds in which a collector answers whether it takes a key."""
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"


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
    key = Authorization(ServiceKey(home), fallback=True)
    return create_tracer_provider(service, home=home, authorization=key, strict=strict)


def takes(authorization: str) -> bool:
    """Return whether the collector takes a key; one that is away or unknown does not refuse it."""
    headers = {"Content-Type": "application/x-protobuf", "Authorization": authorization}
    try:
        with urlopen(Request(traces_url(None), b"", headers), timeout=PROBE):
            return True
    except HTTPError as error:
        return error.code not in (401, 403)
    except (URLError, OSError, ValueError):
        return True


def check_store(home: Path) -> None:
    """Refuse `ltrain up` of another home: it would record this home's processes as nobody's.

    Raises:
        StoreOfAnother: when it does not take the keys of this home, and no other key is set.
    """
    if os.environ.get(HEADERS) or not is_here():
        return
    key = ServiceKey(home)()
    if takes(key) if key else not _is_ltrain():
        return
    folder = store_folder(home) or home / "store"
    raise StoreOfAnother(
        f"The collector at {traces_url(None)} is another store's: it does not take keys that are "
        f"signed with the secret of {folder}, so nothing of this run would count. Start ltrain "
        f"where its LTRAIN_HOME is, or set {STORE_SECRET.name} to that store's secret (the file "
        "<store>.secret beside its folder), or stop it and let this command start its own."
    )


def _is_ltrain() -> bool:
    """Return whether the collector is `ltrain up`, by its health."""
    url = traces_url(None).removesuffix("/v1/traces") + "/health"
    try:
        with urlopen(url, timeout=PROBE) as answer:
            return "recent" in json.load(answer)
    except (URLError, OSError, ValueError, TypeError):
        return False
