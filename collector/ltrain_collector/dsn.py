"""Parse store addresses: `chdb:///dir`, `http(s)://host:port`, `clickhouse://user:pass@host/db`."""

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ltrain_collector.errors import BadDsn
from ltrain_instrument.addresses import FOLDER_OF_STORE, STORE, find_address, find_port
from ltrain_instrument.machine import LOOPBACK_NAMES

PORT = 8123
"""ClickHouse's default HTTP port."""

SCHEMES = ("chdb", "http", "https", "clickhouse", "clickhouses")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that chDB opens in this process."""

    path: Path


@dataclass(frozen=True, slots=True)
class Server:
    """A ClickHouse server, or `ltrain up`, over HTTP."""

    host: str
    port: int = PORT
    user: str = "default"
    password: str = field(default="", repr=False)
    database: str = "default"
    secure: bool = False

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"


def parse_dsn(dsn: str) -> Folder | Server:
    """Parse a store address.

    Raises:
        BadDsn: the address is invalid.
    """
    try:
        parts = urlsplit(dsn)
        port = parts.port
    except ValueError as error:
        raise _bad_dsn(dsn, str(error)) from error
    if parts.scheme not in SCHEMES or "://" not in dsn:
        near = get_close_matches(parts.scheme, SCHEMES, n=1)
        raise _bad_dsn(dsn, f"did you mean {near[0]}://?" if near else "it needs a scheme")
    if parts.scheme == "chdb":
        return _folder(dsn)
    if not parts.hostname:
        raise _bad_dsn(dsn, "it names no host")
    return _server(parts, port)


def local_folder(address: Folder | Server | None, home: Path) -> Path | None:
    """Return the folder of a store on this machine, or None if it is on another machine.

    For a server on this machine, and where no address is known, it is the store of `home`: the
    folder that a running `ltrain up` of the home announces, else its subfolder `store`.
    """
    if isinstance(address, Folder):
        return address.path.absolute()
    if address is not None and address.host not in LOOPBACK_NAMES:
        return None
    is_announced = address is None or address.port == find_port(home, STORE, 0, ("up",))
    folder = find_address(home, FOLDER_OF_STORE, ("up",)) if is_announced else ""
    return Path(folder or home / "store").absolute()


def _folder(dsn: str) -> Folder:
    path = unquote(dsn.removeprefix("chdb://"))
    if not path:
        raise _bad_dsn(dsn, "it names no folder")
    if "?" in path:
        raise _bad_dsn(dsn, "a folder has no options")
    return Folder(Path(path).absolute())


def _server(parts: SplitResult, port: int | None) -> Server:
    secure = parts.scheme in ("https", "clickhouses")
    return Server(
        host=parts.hostname or "",
        port=port or (8443 if secure else PORT),
        user=unquote(parts.username or "default"),
        password=unquote(parts.password or ""),
        database=parts.path.strip("/") or "default",
        secure=secure,
    )


def _bad_dsn(dsn: str, why: str) -> BadDsn:
    return BadDsn(
        f"'{dsn}' is not the address of a store: {why}. Allowed: chdb:///dir, http://host:8123, "
        "https://host:8443, clickhouse://user:pass@host:8123/otel."
    )
