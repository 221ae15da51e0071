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
from ltrain_collector.transfer.intake import PLACES, Counts, Progress, files_of, take_in
from ltrain_collector.transfer.output import FORMS, OUTPUTS, counted, strangers

NAMES = {"traces": "spans", "logs": "log records", "metrics": "data points"}


def take_in_files(path: Path, dsn: str | None, as_json: bool, trusted: bool = False) -> bool:
    """Import, and say whether all of it could be read."""
    paths = files_of(path)
    console = Console(stderr=True)
    with Store.open(dsn) as store, console.status("") as shown:
        store.migrate()
        told = {each: number for number, each in enumerate(paths, 1)}

        def seen(now: Progress) -> None:
            where = f"{now.read >> 20} of {now.size >> 20} MiB" if now.size else "a pipe"
            shown.update(f"{now.path}, {told[now.path]} of {len(paths)} files: {where}")

        counts = take_in(store, paths, seen, trusted)
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
    signal: str = "traces",
) -> None:
    """Export to `out`, else to standard output.

    Raises:
        BadFormat: when there is no such form or signal, or a signal has no runs to choose from.
    """
    if form not in FORMS:
        raise BadFormat(f"Format '{form}' is not written here. Choose from: {', '.join(FORMS)}.")
    if signal not in OUTPUTS:
        raise BadFormat(f"There is no signal '{signal}'. Choose from: {', '.join(OUTPUTS)}.")
    if signal == "metrics" and (run is not None or rollout is not None):
        raise BadFormat(
            "Metrics are of no run and no rollout. Choose them with --where, as "
            "\"ServiceName = 'agent'\"."
        )
    conditions, params = ["true"], dict[str, object]()
    for name, column, value in (("run", "RunId", run), ("rollout", "RolloutId", rollout)):
        if value is not None:
            conditions.append(f"{column} = {{{name}:String}}")
            params[name] = value
    conditions += [f"({where})"] if where else []
    count = 0
    chosen = " AND ".join(conditions)
    with Store.open(dsn, create=False) as store, _opened(out) as file:
        left_out = strangers(store, chosen, params, signal)
        for records, request in counted(store, chosen, params, signal):
            file.write(FORMS[form](request))
            count += records
        file.flush()
    name = NAMES[signal]
    if left_out:
        told = f"{left_out} {name} were left out: their ids are not 32 and 16 hexadecimal digits."
        print(told, file=sys.stderr)
    if out is not None:
        print(f"{count} {name} of {store.name} are in {out}.")


def _opened(out: Path | None) -> Any:
    if out is None:
        return nullcontext(sys.stdout.buffer)
    openers: dict[str, Any] = {".gz": gzip.open, ".zst": zstd.open}
    opened: IO[bytes] = openers.get(out.suffix, open)(out, "wb")
    return opened
