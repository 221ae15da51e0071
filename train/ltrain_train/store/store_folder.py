"""The folder of the local store that ltrain's processes write to."""

from pathlib import Path

from ltrain_collector.dsn import local_folder, parse_dsn
from ltrain_instrument.settings import STORE


def store_folder(home: Path) -> Path | None:
    """Return the folder of LTRAIN_STORE, by default of the home; None for a remote store."""
    return local_folder(parse_dsn(STORE.read()) if STORE.read() else None, home)
