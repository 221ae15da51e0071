"""Scratch folders: the sockets and temporary files of one child, for this user alone.

* The name holds the process id of the owner: what a killed guard left behind is removed by the next
  owner that makes one of the same kind.
* A unix socket's path has at most 107 bytes, so a folder lies under the system's temporary one
  where the preferred place is too deep.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from ltrain_train.pid import is_running

LONGEST_SOCKET = 107
"""Bytes of a unix socket's path in Linux."""
SHORTEST = Path("/tmp")
"""Where a folder lies when even the temporary directory is too deep."""


def scratch_path(kind: str, *, below: Path | None, socket_name: int) -> Path:
    """Return a path for a new folder of `kind`, after removing those of owners that are dead.

    `socket_name` is how many bytes the paths of sockets may be longer than the folder's.
    """
    name = f"ltrain-{kind}-{os.getpid()}-{token_hex(2)}"
    preferred = [] if below is None else [below.absolute()]
    for root in (*preferred, Path(tempfile.gettempdir()), SHORTEST):
        if len(os.fsencode(root / name)) + 1 + socket_name <= LONGEST_SOCKET:
            break
    _remove_left(root, kind)
    return root / name


def _remove_left(root: Path, kind: str) -> None:
    for folder in root.glob(f"ltrain-{kind}-*-*"):
        owner = folder.name.split("-")[2]
        if owner.isdigit() and not is_running(int(owner)):
            with suppress(OSError):
                if folder.lstat().st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)
