"""An empty store, which one process of a test run migrates and the tests copy."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ltrain_instrument.files import make_private

SHARED = "TEST_STORE"
"""The variable with the folder that these processes share; `tests/conftest.py` sets it."""


def copy_empty_store(folder: Path) -> None:
    """Make a store in a new folder: a copy takes a tenth of the time of a migration."""
    make_private(folder.parent)
    shutil.copytree(_migrated_folder(), folder, symlinks=True)


def _migrated_folder() -> Path:
    """Return the folder of the store that the first test to need a store has migrated."""
    shared = Path(os.environ[SHARED])
    folder = shared / "store"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            command = [sys.executable, "-m", "ltrain", "store", "migrate", "--store"]
            subprocess.run([*command, f"chdb://{shared}/new"], check=True, capture_output=True)
            (shared / "new").rename(folder)
    return folder
