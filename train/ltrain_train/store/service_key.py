"""The key with which ltrain's own processes send spans, so that readers can trust them.

The key is signed with the store's secret: LTRAIN_STORE_SECRET, or the file beside the store's
folder on this machine. Without a readable secret, the key in OTEL_EXPORTER_OTLP_HEADERS is used,
or none.
"""

import json
import os
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from opentelemetry.sdk.trace import TracerProvider

from ltrain_collector.access import sign_service, store_secret
from ltrain_collector.dsn import local_folder, parse_dsn
from ltrain_instrument.clock import Deadline
from ltrain_instrument.delivery import Authorization, create_tracer_provider, traces_url
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.machine import is_loopback
from ltrain_instrument.settings import OLD_GATEWAY_SECRET, STORE, STORE_SECRET
from ltrain_train.errors import ForeignStore

KEY_SECONDS = 86400.0
"""Seconds until a key expires; a new one is signed after half of that, so runs may last weeks."""
MAX_HEALTH_BYTES = 1 << 20
"""Bytes of a health response that are read."""
PROBE_TIMEOUT = 5.0
"""Seconds to wait for a collector's answer to a test request."""
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"


class ServiceKey:
    """The Authorization header of an ltrain process, renewed before it expires."""

    def __init__(self, home: Path) -> None:
        """Sign a first key.

        Args:
            home: folder with the spool of the process and, by default, the store.
        """
        self._home = home
        self._header: str | None = None
        self._renewal = Deadline.after(0.0)
        self()

    def __call__(self) -> str | None:
        """Return the header's value; None if the store's secret cannot be read."""
        if self._renewal.left <= 0:
            try:
                secret = collector_secret(self._home)
            except OSError:  # another user's store
                secret = None
            if secret is None:
                return None  # the store may not exist yet
            self._header = f"Bearer {sign_service(secret, KEY_SECONDS)}"
            self._renewal = Deadline.after(KEY_SECONDS / 2)
        return self._header


def is_local_collector() -> bool:
    """Return whether this process sends spans to a collector on this machine."""
    url = traces_url(None)
    return is_loopback(urlsplit(url if "://" in url else f"http://{url}").hostname or "")


def open_service_provider(service: str, home: Path, *, strict: bool = False) -> TracerProvider:
    """Return a tracer provider that sends spans with a service key.

    Args:
        service: the service name of the spans.
        home: folder with the spool.
        strict: whether `span.end()` raises OSError for a span that cannot be written.

    Raises:
        BadSetting: when a setting cannot be read, or the store's secret is too short.
    """
    key = Authorization(ServiceKey(home), fallback=True)
    return create_tracer_provider(service, home=home, authorization=key, strict=strict)


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect, which would carry a key to another host."""

    def redirect_request(self, *_: object) -> None:
        """Return no request, so that the redirect is an error."""


_opener = build_opener(_NoRedirects)


def accepts_key(authorization: str) -> bool:
    """Return whether the collector accepts a key; True if no collector answers."""
    headers = {"Content-Type": "application/x-protobuf", "Authorization": authorization}
    try:
        with _opener.open(Request(traces_url(None), b"", headers), timeout=PROBE_TIMEOUT):
            return True
    except HTTPError as error:
        return error.code not in (401, 403)
    except (URLError, OSError, ValueError):
        return True


def require_own_store(home: Path) -> None:
    """Check that the local collector accepts this home's keys.

    Another home's `ltrain up` would not trust the spans of this home's processes.

    Raises:
        ForeignStore: when it refuses the keys of this home and no other key is set.
    """
    if os.environ.get(HEADERS_VARIABLE) or not is_local_collector():
        return
    key = ServiceKey(home)()
    if accepts_key(key) if key else not _is_ltrain_collector():
        return
    folder = store_folder(home) or home / "store"
    raise ForeignStore(
        f"The collector at {traces_url(None)} belongs to another store: it refuses keys signed "
        f"with the secret of {folder}, so no span of this run would be trusted. Run ltrain with "
        f"the LTRAIN_HOME of that store, set {STORE_SECRET.name} to that store's secret (the file "
        "<store>.secret beside its folder), or start a collector of this home beside it with "
        "`ltrain up --port-base 9000`."
    )


def _is_ltrain_collector() -> bool:
    """Return whether the collector's health response is that of `ltrain up`."""
    url = traces_url(None).removesuffix("/v1/traces") + "/health"
    try:
        with _opener.open(url, timeout=PROBE_TIMEOUT) as answer:
            return "recent" in json.loads(answer.read(MAX_HEALTH_BYTES))
    except (URLError, OSError, ValueError, TypeError):
        return False


def collector_secret(home: Path) -> str | None:
    """Return the secret of the collector's store; None if that is not on this machine, or not yet.

    Raises:
        BadSetting, OSError: when it is too short, or cannot be read.
    """
    folder = store_folder(home)
    if STORE_SECRET.read() or (is_local_collector() and folder and folder.is_dir()):
        return store_secret(folder or home / "store")
    return None


def home_secret(home: Path) -> str:
    """Return the secret that signs the keys of a home, for its gateway and its store.

    Raises:
        BadSetting: when it is too short or cannot be read, or is set under its old name.
    """
    if os.environ.get(OLD_GATEWAY_SECRET):
        raise BadSetting(
            f"{OLD_GATEWAY_SECRET} is not read any more: one secret signs the keys of gateway and "
            f"store. Set {STORE_SECRET.name} in its place, or unset it to use the store's file."
        )
    try:
        return store_secret(store_folder(home) or home / "store")
    except OSError as error:
        raise BadSetting(
            f"The store's secret cannot be read: {error}. Set {STORE_SECRET.name} to the secret."
        ) from error


def store_folder(home: Path) -> Path | None:
    """Return the folder of LTRAIN_STORE, by default of the home; None for a remote store."""
    return local_folder(parse_dsn(STORE.read()) if STORE.read() else None, home)
