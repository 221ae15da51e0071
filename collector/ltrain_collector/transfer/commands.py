"""Run `ltrain import` and `ltrain export`, with their progress and reports."""

import gzip
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from backports import zstd
from rich.console import Console

from ltrain_collector.admin import format_report
from ltrain_collector.errors import BadFormat
from ltrain_collector.signals import SIGNALS
from ltrain_collector.store import Store
from ltrain_collector.transfer.exporting import (
    FORMATS,
    count_invalid_ids,
    export_batches,
)
from ltrain_collector.transfer.importing import (
    MAX_PLACES,
    ImportCounts,
    Progress,
    import_files,
    list_files,
)

SIGNAL_NAMES = {signal.name: signal for signal in SIGNALS}


def run_import(path: Path, dsn: str | None, as_json: bool, trusted: bool = False) -> bool:
    """Import files and print a report; return whether all records could be read."""
    paths = list_files(path)
    console = Console(stderr=True)
    with Store.open(dsn) as store, console.status("") as shown:
        store.migrate()
        report = {each: number for number, each in enumerate(paths, 1)}

        def on_progress(now: Progress) -> None:
            where = f"{now.read >> 20} of {now.size >> 20} MiB" if now.size else "a pipe"
            shown.update(f"{now.path}, {report[now.path]} of {len(paths)} files: {where}")

        counts = import_files(store, paths, on_progress, trusted)
    print(format_report(_report(counts), as_json), flush=True)
    return not counts.unreadable


def _report(counts: ImportCounts) -> dict[str, object]:
    report: dict[str, object] = {
        "files": counts.files,
        "records": counts.records,
        "stored": counts.stored,
        "rejected": counts.records - counts.stored,
        "unreadable": counts.unreadable,
    }
    if counts.rejected:
        report["why_rejected"] = dict(counts.rejected)
    if counts.places:
        more = [f"… and {counts.unreadable - MAX_PLACES} more"] * (counts.unreadable > MAX_PLACES)
        report["where_unreadable"] = counts.places + more
    return report


def export_records(
    out: Path | None,
    dsn: str | None,
    run: str | None,
    rollout: str | None,
    where: str | None,
    form: str,
    signal: str = "traces",
) -> None:
    """Export records to `out`, by default to standard output.

    Raises:
        BadFormat: the format or the signal is unknown, or metrics are selected by run or rollout.
    """
    if form not in FORMATS:
        raise BadFormat(f"Unknown format '{form}'. Choose from: {', '.join(FORMATS)}.")
    if signal not in SIGNAL_NAMES:
        raise BadFormat(f"Unknown signal '{signal}'. Choose from: {', '.join(SIGNAL_NAMES)}.")
    source = SIGNAL_NAMES[signal]
    if not source.has_rollouts and (run is not None or rollout is not None):
        raise BadFormat(
            f"{signal.title()} belong to no run and no rollout. Remove --run and --rollout, and "
            f"select {signal} with --where, e.g. \"ServiceName = 'agent'\"."
        )
    conditions, params = ["true"], dict[str, object]()
    for name, column, value in (("run", "RunId", run), ("rollout", "RolloutId", rollout)):
        if value is not None:
            conditions.append(f"{column} = {{{name}:String}}")
            params[name] = value
    conditions += [f"({where})"] if where else []
    count = 0
    condition = " AND ".join(conditions)
    with Store.open(dsn, create=False) as store, _opened(out) as file:
        left_out = count_invalid_ids(store, condition, params, source)
        for records, request in export_batches(store, condition, params, source):
            file.write(FORMATS[form](request))
            count += records
        file.flush()
    name = source.noun
    if left_out:
        report = (
            f"{left_out} {name} were not exported: their ids are not 32 and 16 hexadecimal digits."
        )
        print(report, file=sys.stderr)
    if out is not None:
        print(f"{count} {name} of {store.name} are in {out}.")


def _opened(out: Path | None) -> Any:
    if out is None:
        return nullcontext(sys.stdout.buffer)
    openers: dict[str, Any] = {".gz": gzip.open, ".zst": zstd.open}
    opened: IO[bytes] = openers.get(out.suffix, open)(out, "wb")
    return opened
