"""The folder of the store that ltrain's processes write to, where it is on this machine."""

from pathlib import Path

from ltrain_collector.dsn import Folder, Server, parse
from ltrain_instrument import loopback
from ltrain_instrument.settings import STORE


def store_folder(home: Path) -> Path | None:
    """Return the folder of LTRAIN_STORE, by default the home's; None: it is on another machine."""
    at = parse(STORE.read()) if STORE.read() else None
    if isinstance(at, Server) and at.host not in loopback.NAMES:
        return None
    return (at.path if isinstance(at, Folder) else home / "store").absolute()
