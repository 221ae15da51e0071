"""The folder of the store that ltrain's processes write to, where it is on this machine."""

from pathlib import Path

from ltrain_collector.dsn import local_folder, parse_dsn
from ltrain_instrument.settings import STORE


def store_folder(home: Path) -> Path | None:
    """Return the folder of LTRAIN_STORE, by default the home's; None: it is on another machine."""
    return local_folder(parse_dsn(STORE.read()) if STORE.read() else None, home)
