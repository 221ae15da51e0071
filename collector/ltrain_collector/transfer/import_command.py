"""Run `ltrain import`, with its progress and report."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ltrain_collector.admin import days_ago
from ltrain_collector.errors import BadSource, BadTime
from ltrain_collector.query_output import format_report
from ltrain_collector.sources import Window, is_address, nanoseconds, open_server
from ltrain_collector.store import Store
from ltrain_collector.transfer.from_server import import_server, page_documents
from ltrain_collector.transfer.importing import (
    MAX_PLACES,
    ImportCounts,
    Progress,
    file_documents,
    import_files,
    list_files,
)
from ltrain_collector.transfer.survey import Survey

DAYS = re.compile(r"(\d+(?:\.\d+)?)d")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of the command, as they were typed."""

    since: str | None = None
    until: str | None = None
    limit: int | None = None
    dry_run: bool = False
    trusted: bool = False

    @property
    def window(self) -> Window:
        """The traces of a server.

        Raises:
            BadTime: `since` or `until` is not a time.
        """
        return Window(_time(self.since), _time(self.until), self.limit)


def run_import(source: str, dsn: str | None, options: ImportOptions, as_json: bool) -> bool:
    """Import a source and print a report; return whether all records could be read.

    Raises:
        BadSource: an option is for sources of another kind, or the address is invalid.
        SourceFailed: a server does not answer; what it has answered is stored.
    """
    of_server = (options.since, options.until, options.limit)
    if is_address(source):
        if options.trusted:
            raise BadSource("--trusted is for exports of your own store. Remove it for a server.")
    elif of_server != (None, None, None):
        raise BadSource("--since, --until and --limit are for servers. Remove them for files.")
    console = Console(stderr=True)
    if options.dry_run:
        report, complete = _survey(source, options, console)
        print(format_report(report, as_json), flush=True)
        return complete
    # before the store is opened: a wrong source is the first thing to mend
    importing = _server_import(source) if is_address(source) else _file_import(source)
    with Store.open(dsn) as store:
        store.migrate()
        counts, report = importing(store, options, console)
    report |= _report(counts, as_json)
    print(format_report(report, as_json), flush=True)
    if not as_json:
        print(*_new_sentences(counts), sep="\n", end="\n" if counts.stored else "", flush=True)
    return not counts.unreadable


Import = Callable[[Store, ImportOptions, Console], tuple[ImportCounts, dict[str, object]]]
"""Imports a source, and returns the counts and what else its report has."""


def _file_import(source: str) -> Import:
    paths = list_files(Path(source))
    report = {each: number for number, each in enumerate(paths, 1)}

    def run(store: Store, options: ImportOptions, console: Console) -> Any:
        with console.status("") as shown:

            def on_progress(now: Progress) -> None:
                where = f"{now.read >> 20} of {now.size >> 20} MiB" if now.size else "a pipe"
                shown.update(f"{now.path}, {report[now.path]} of {len(paths)} files: {where}")

            counts = import_files(store, paths, on_progress, options.trusted)
        return counts, {"files": counts.files}

    return run


def _server_import(source: str) -> Import:
    address, server = open_server(source)

    def run(store: Store, options: ImportOptions, console: Console) -> Any:
        with console.status(f"{address}") as shown:
            counts, traces, before = import_server(
                store,
                str(address),
                server,
                options.window,
                lambda traces: shown.update(f"{address}: {traces} traces"),
            )
        resumed = {"stored_by_an_earlier_try": before} if before else {}
        return counts, {"traces": traces, **resumed}

    return run


def _survey(
    source: str, options: ImportOptions, console: Console
) -> tuple[dict[str, object], bool]:
    """Return the report of a dry run, and whether all records could be read."""
    survey, counts = Survey(), ImportCounts()
    with console.status(source):
        if is_address(source):
            address, server = open_server(source)
            for page in server.pages(options.window):
                survey.add(page_documents(page, str(address)), counts)
        else:
            paths = list_files(Path(source))
            survey.add(file_documents(paths, lambda _: None, counts), counts)
    return survey.report() | _where_unreadable(counts), not counts.unreadable


def _time(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        if days := DAYS.fullmatch(text):
            return nanoseconds(days_ago(float(days[1])).isoformat())
        return nanoseconds(datetime.fromisoformat(text).isoformat())
    except (ValueError, OverflowError) as error:
        raise BadTime(
            f"'{text}' is no time. Write ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z, or "
            "days before now, such as 7d."
        ) from error


def _new_sentences(counts: ImportCounts) -> Iterator[str]:
    for noun, rows in counts.stored_rows.items():
        new = counts.new_rows[noun]
        rest = f"; {rows - new} were stored already" if new < rows else ""
        yield f"{new} of {rows} {noun} are new{rest}."


def _report(counts: ImportCounts, as_json: bool) -> dict[str, object]:
    report: dict[str, object] = {
        "records": counts.records,
        "stored": counts.stored,
        "rejected": counts.records - counts.stored,
        "unreadable": counts.unreadable,
    }
    if as_json:
        report["new"] = dict(counts.new_rows)
    if counts.rejected:
        report["why_rejected"] = dict(counts.rejected)
    return report | _where_unreadable(counts)


def _where_unreadable(counts: ImportCounts) -> dict[str, object]:
    if not counts.places:
        return {}
    more = [f"… and {counts.unreadable - MAX_PLACES} more"] * (counts.unreadable > MAX_PLACES)
    return {"where_unreadable": counts.places + more}
