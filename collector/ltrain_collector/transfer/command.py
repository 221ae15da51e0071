"""`ltrain import` and `ltrain export`, with what they say while they work."""

import gzip
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from backports import zstd
from rich.console import Console

from ltrain_collector.errors import BadFormat
from ltrain_collector.report import told_as
from ltrain_collector.store import Store
from ltrain_collector.transfer.intake import PLACES, Counts, files_of, take_in
from ltrain_collector.transfer.output import FORMS, requests, strangers


def take_in_files(path: Path, dsn: str | None, as_json: bool) -> bool:
    """Import, and say whether all of it could be read."""
    paths = files_of(path)
    console = Console(stderr=True)
    with Store.open(dsn) as store, console.status("") as shown:
        store.migrate()
        told = {each: number for number, each in enumerate(paths, 1)}
        counts = take_in(
            store, paths, lambda now: shown.update(f"{now}, {told[now]} of {len(paths)} files")
        )
    print(told_as(_told(counts), as_json), flush=True)
    return not counts.unreadable


def _told(counts: Counts) -> dict[str, object]:
    told: dict[str, object] = {
        "files": counts.files,
        "records": counts.records,
        "stored": counts.stored,
        "rejected": counts.records - counts.stored,
        "unreadable": counts.unreadable,
    }
    if counts.rejected:
        told["why_rejected"] = dict(counts.rejected)
    if counts.places:
        more = [f"… and {counts.unreadable - PLACES} more"] * (counts.unreadable > PLACES)
        told["where_unreadable"] = counts.places + more
    return told


def give_out(
    out: Path | None,
    dsn: str | None,
    run: str | None,
    rollout: str | None,
    where: str | None,
    form: str,
) -> None:
    """Export to `out`, else to standard output.

    Raises:
        BadFormat: when there is no such form.
    """
    if form not in FORMS:
        raise BadFormat(f"Format '{form}' is not written here. Choose from: {', '.join(FORMS)}.")
    conditions, params = ["true"], dict[str, object]()
    for name, column, value in (("run", "RunId", run), ("rollout", "RolloutId", rollout)):
        if value is not None:
            conditions.append(f"{column} = {{{name}:String}}")
            params[name] = value
    conditions += [f"({where})"] if where else []
    count = 0
    chosen = " AND ".join(conditions)
    with Store.open(dsn, create=False) as store, _opened(out) as file:
        left_out = strangers(store, chosen, params)
        for request in requests(store, chosen, params):
            file.write(FORMS[form](request))
            count += sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
        file.flush()
    if left_out:
        told = f"{left_out} spans were left out: their ids are not 32 and 16 hexadecimal digits."
        print(told, file=sys.stderr)
    if out is not None:
        print(f"{count} spans of {store.name} are in {out}.")


def _opened(out: Path | None) -> Any:
    if out is None:
        return nullcontext(sys.stdout.buffer)
    openers: dict[str, Any] = {".gz": gzip.open, ".zst": zstd.open}
    opened: IO[bytes] = openers.get(out.suffix, open)(out, "wb")
    return opened
