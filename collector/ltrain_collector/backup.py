"""A store copied and brought back, by ClickHouse itself, while it is in use.

ClickHouse writes below a folder that its configuration allows, `backups` in a folder of ours; from
there the copy goes to its place, once every file in it was found with the size it should have.
"""

import shutil
import tarfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

from ltrain_collector import schema
from ltrain_collector.engine import BACKUPS
from ltrain_collector.errors import BadBackup, QueryFailed
from ltrain_collector.store import Store


def backup(store: Store, target: Path) -> int:
    """Write the database `otel` to a new folder, or to a file where `target` ends in .tar.

    Gives the number of files.

    Raises:
        BadBackup: when it cannot be written, or is not whole.
    """
    if target.exists():
        raise BadBackup(f"{target} is there already. Name a new folder, or a new file *.tar.")
    inside = _folder(store)
    name = f"ltrain-{time.time_ns()}{'.tar' if target.suffix == '.tar' else ''}"
    try:
        store.command(f"BACKUP DATABASE otel TO File('{inside / name}')")
        count = verify(inside / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(inside / name, target)
    except (QueryFailed, OSError) as error:
        raise BadBackup(f"The store {store.name} was not copied to {target}: {error}") from error
    finally:
        _remove(inside / name)
    return count


def restore(store: Store, source: Path) -> int:
    """Bring a copy back into a store that holds nothing; gives the number of spans.

    Raises:
        BadBackup: when there is no whole copy, or the store is not empty.
    """
    verify(source)
    if there := held(store):
        raise BadBackup(
            f"The store {store.name} holds {there}; a copy goes into an empty one only. "
            "Name another with --store chdb:///new/folder."
        )
    inside = _folder(store)
    name = f"ltrain-{time.time_ns()}{source.suffix if source.is_file() else ''}"
    try:
        (shutil.copy if source.is_file() else shutil.copytree)(source, inside / name)
        store.command("DROP DATABASE IF EXISTS otel SYNC")
        store.command(f"RESTORE DATABASE otel FROM File('{inside / name}')")
    except (QueryFailed, OSError) as error:
        raise BadBackup(f"{source} was not restored into {store.name}: {error}") from error
    finally:
        _remove(inside / name)
    store.migrate()
    return int(store.query("SELECT count() AS n FROM otel.spans")["n"].item())


def held(store: Store) -> str:
    """Say how many records of each signal a store holds; '' where there are none."""
    counts: Counter[str] = Counter()
    for name, signal in schema.SIGNALS.items():
        with suppress(QueryFailed):  # it has no tables yet
            rows = store.query(f"SELECT count() AS n FROM {signal.table}")["n"].item()
            counts[RECORDS.get(name, "data points")] += int(rows)
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


RECORDS = {"traces": "spans", "logs": "log records"}


def verify(copy: Path) -> int:
    """Give the number of files of a copy.

    Raises:
        BadBackup: when one is missing or shorter than it was.
    """
    try:
        sizes = _sizes(copy)
        listed = ElementTree.fromstring(_list(copy))
    except (OSError, KeyError, tarfile.TarError, ElementTree.ParseError) as error:
        raise BadBackup(
            f"{copy} is no copy that `ltrain store backup` made, or is cut off: {error}"
        ) from error
    wanted = {
        each.findtext("data_file") or each.findtext("name") or "": int(each.findtext("size") or 0)
        for each in listed.iter("file")
    }
    for name, size in wanted.items():
        if size and sizes.get(name) != size:
            found = f"{sizes[name]} bytes" if name in sizes else "missing"
            raise BadBackup(f"{copy} is not whole: {name} should have {size} bytes, it is {found}.")
    return len(wanted)


def _sizes(copy: Path) -> dict[str, int]:
    if copy.is_dir():
        files = (each for each in copy.rglob("*") if each.is_file())
        return {str(each.relative_to(copy)): each.stat().st_size for each in files}
    with tarfile.open(copy) as tar:
        return {each.name.removeprefix("./"): each.size for each in tar if each.isfile()}


def _list(copy: Path) -> bytes:
    if copy.is_dir():
        return (copy / ".backup").read_bytes()
    with tarfile.open(copy) as tar:
        file = tar.extractfile(".backup")
        return file.read() if file else b""


def _folder(store: Store) -> Path:
    """Give the folder that the store's engine may write copies to.

    Raises:
        BadBackup: when it is on another machine.
    """
    path = Path(str(store.query("SELECT path FROM system.disks LIMIT 1")["path"].item())) / BACKUPS
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise BadBackup(
            f"The store {store.name} keeps its files in {path.parent}, which is not here or not "
            f"ours to write: {error.strerror}. Copy a ClickHouse server with its own BACKUP."
        ) from error
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
