"""Where the servers of a home listen: files in LTRAIN_HOME/addresses that commands and agents read.

* A server holds an flock on its file while it listens: the file of a killed server does not count.
* A file counts that this user wrote on this machine, in folders of this user; others may read it.
* A file holds addresses and the folder of the store, and no key.
"""

import errno
import fcntl
import json
import logging
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ltrain_instrument.files import OWNER_FILE, make_private, temporary_sibling

FOLDER = "addresses"
"""The subfolder of LTRAIN_HOME with a file for each server."""
SERVERS = ("serve", "ui", "up")
"""Commands that announce addresses; `up`, the last, also names ports for servers that do not run
yet."""
OTLP, GRPC, STORE, GATEWAY, UI = "otlp", "grpc", "store", "gateway", "ui"
"""Names of the addresses of a home."""
FOLDER_OF_STORE = "folder"
"""Name of the store's folder among what `up` announces."""
FILE_LIMIT = 1 << 16
"""Bytes of a file that are read."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_logger = logging.getLogger("ltrain.addresses")


@contextmanager
def announce(home: Path, server: str, addresses: Mapping[str, str]) -> Iterator[None]:
    """Announce in the block where a server of this process listens.

    The server runs without an announcement if another process of the home announces the same kind
    of server, or if the file cannot be written.
    """
    path = home.absolute() / FOLDER / f"{server}.json"
    descriptor = _write(path, server, addresses)
    try:
        yield
    finally:
        if descriptor is not None:
            _remove(path, descriptor)


def find_address(home: Path, name: str, servers: Sequence[str] = SERVERS) -> str:
    """Return an address that one of these running servers of the home announces, or ''."""
    for server in servers:
        path = home / FOLDER / f"{server}.json"
        if _is_in_own_folders(path) and (address := _read(path).get(name)):
            return str(address)
    return ""


def find_port(home: Path, name: str, default: int, servers: Sequence[str] = SERVERS) -> int:
    """Return the port of an address that one of these servers announces, or a default."""
    return urlsplit(find_address(home, name, servers)).port or default


def _write(path: Path, server: str, addresses: Mapping[str, str]) -> int | None:
    """Write the file of a server, and return the descriptor that holds its lock."""
    try:
        make_private(path.parent)
        if not _is_in_own_folders(path):
            raise PermissionError(errno.EPERM, "another user owns the folder")
        if other := _read(path):
            _logger.warning(
                "ltrain: commands find the `ltrain %s` of process %s, which has the same "
                "LTRAIN_HOME, not this one. Give each its own LTRAIN_HOME.",
                server,
                other.get("pid"),
            )
            return None
        content = {**addresses, "pid": os.getpid(), "host": socket.gethostname()}
        with temporary_sibling(path) as draft:
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_FILE)
            # locked before it has its name: no reader sees the file of this server without a lock
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, json.dumps(content).encode())
            draft.rename(path)
        return descriptor
    except OSError as error:
        _logger.warning("ltrain: %s cannot be written, so commands need variables: %s", path, error)
        return None


def _remove(path: Path, descriptor: int) -> None:
    """Remove the file of this server, unless another server has replaced it."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            path.unlink()
    os.close(descriptor)


def _read(path: Path) -> dict[str, Any]:
    """Return the content of the file of a running server; {} if it does not count."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        if not (_is_own_file(os.fstat(descriptor)) and _is_locked(descriptor)):
            return {}
        content = json.loads(os.read(descriptor, FILE_LIMIT))
    except (OSError, ValueError):
        return {}
    finally:
        os.close(descriptor)
    is_of_this_machine = isinstance(content, dict) and content.get("host") == socket.gethostname()
    return content if is_of_this_machine else {}


def _is_in_own_folders(path: Path) -> bool:
    """Return whether the folder of a file and the home belong to this user."""
    folders = (path.parent, path.parent.parent)
    try:
        return all(folder.stat().st_uid == os.geteuid() for folder in folders)
    except OSError:
        return False


def _is_own_file(status: os.stat_result) -> bool:
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & OTHERS_WRITE
    )


def _is_locked(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    return True
