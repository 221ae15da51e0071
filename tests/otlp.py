"""An empty store of a test, and OTLP requests into it, without a collector."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from ltrain_collector import schema
from ltrain_collector.signals import TRACES, Rows, Signal
from ltrain_collector.store import Store


def open_empty_store(folder: Path) -> Store:
    """Return the open store of a new folder: a copy of one that this process has migrated.

    A copy takes a third of the time of a migration. This process must have no other store open.
    """
    shutil.copytree(_migrated_folder(), folder, symlinks=True)
    return Store.open(f"chdb://{folder}")


@cache
def _migrated_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ltrain-store-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with Store.open(f"chdb://{folder}/store") as store:
        store.migrate()
    return folder / "store"


def insert_otlp(store: Store, body: bytes, signal: Signal = TRACES) -> Rows:
    """Insert one serialised request; a resource that names no sender gets the sender `local`."""
    rows = signal.encode_local(signal.parse_request(body))
    for table, block in rows.blocks.items():
        store.insert_rows(schema.insert_target(table), block.payload)
    return rows
