"""Scratch folders: private folders for the sockets and temporary files of one child process.

* The folder's name contains the owner's process id. The next owner that makes a folder of the same
  kind removes the folders of dead owners.
* The path of a unix socket has at most 107 bytes. If the preferred parent is too deep, the folder
  is made in the system's temporary directory.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from ltrain_instrument.machine import is_running

MAX_SOCKET_PATH = 107
"""Maximum bytes in the path of a unix socket on Linux."""
FALLBACK_ROOT = Path("/tmp")
"""Parent of the folder when even the temporary directory is too deep."""


def scratch_path(kind: str, *, parent: Path | None, max_socket_name: int) -> Path:
    """Return a path for a new folder of `kind`, after removing the folders of dead owners.

    Args:
        kind: what the folder is for; part of its name.
        parent: preferred parent folder; None for the temporary directory.
        max_socket_name: bytes of the longest socket path below the folder.
    """
    name = f"ltrain-{kind}-{os.getpid()}-{token_hex(2)}"
    preferred = [] if parent is None else [parent.absolute()]
    for root in (*preferred, Path(tempfile.gettempdir()), FALLBACK_ROOT):
        if len(os.fsencode(root / name)) + 1 + max_socket_name <= MAX_SOCKET_PATH:
            break
    _remove_stale(root, kind)
    return root / name


def compile_cache() -> str:
    """Return this user's folder of compiled torch code, a value of TORCHINDUCTOR_CACHE_DIR.

    torch's own is below TMPDIR: a child whose TMPDIR is a scratch folder would compile again at
    each start.
    """
    configured = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    # the user's name is unknown in some containers
    return configured or str(Path(tempfile.gettempdir()) / f"torchinductor_uid_{os.getuid()}")


def _remove_stale(root: Path, kind: str) -> None:
    for folder in root.glob(f"ltrain-{kind}-*-*"):
        owner = folder.name.split("-")[2]
        if owner.isdigit() and not is_running(int(owner)):
            with suppress(OSError):
                if folder.lstat().st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)
