"""Run `ltrain export`: the records of a store as OTLP, in a file or on standard output."""

import gzip
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import orjson
from backports import zstd

from ltrain_collector import schema
from ltrain_collector.errors import BadFormat, NothingToExport
from ltrain_collector.signals import SIGNALS, TRACES, Signal, otlp_json
from ltrain_collector.store import Store, rollout_stream, to_rows

SIGNAL_NAMES = {signal.name: signal for signal in SIGNALS}
INVALID_IDS = "their ids are not 32 and 16 hexadecimal digits"
MAX_RUNS = 10
"""Number of runs that the message of an empty export lists, the newest first."""


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
        NothingToExport: no record is selected; `out` is not written.
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
    filters = {"run": run, "rollout": rollout, "where": where}
    condition, params = _condition(run, rollout, where)
    with Store.open(dsn, create=False) as store:
        left_out = count_invalid_ids(store, condition, params, source)
        batches = export_batches(store, condition, params, source)
        first = next(batches, None)
        if first is None:
            raise NothingToExport(_nothing_message(store, source, filters, left_out))
        count = 0
        with _opened(out) as file:  # only now: a file that exists is kept if there is nothing
            for records, request in chain([first], batches):
                file.write(FORMATS[form](request))
                count += records
            file.flush()
    if left_out:
        print(f"Not exported: {source.quantity_of(left_out)}; {INVALID_IDS}.", file=sys.stderr)
    if out is not None:
        print(f"{out}: {source.quantity_of(count)} of {store.name}.")


def _condition(
    run: str | None, rollout: str | None, where: str | None
) -> tuple[str, dict[str, object]]:
    conditions, params = ["true"], dict[str, object]()
    for name, column, value in (("run", "RunId", run), ("rollout", "RolloutId", rollout)):
        if value is not None:
            conditions.append(f"{column} = {{{name}:String}}")
            params[name] = value
    conditions += [f"({where})"] if where else []
    return " AND ".join(conditions), params


def _nothing_message(
    store: Store, signal: Signal, filters: dict[str, str | None], left_out: int
) -> str:
    """Return a sentence with the selection, the store's contents, and the option to change."""
    options = " ".join(
        f"--{name} {shlex.quote(value)}" for name, value in filters.items() if value is not None
    )
    selected = f" with {options}" if options else ""
    if left_out:
        return (
            f"Nothing is exported: {store.name} holds {signal.quantity_of(left_out)}{selected}, "
            f"but {INVALID_IDS}, and OTLP cannot contain them. Read them with `ltrain sql`."
        )
    found = ", ".join(_held_records(store)) or "nothing"
    runs = _newest_runs(store, signal) if options and signal.has_rollouts else []
    of_runs = f"; runs of its {signal.noun}: {', '.join(runs)}" if runs else ""
    return (
        f"There are no {signal.noun}{selected}. {store.name} holds {found}{of_runs}. Change "
        "--signal, --run, --rollout or --where, or name another store with --store."
    )


def _held_records(store: Store) -> Iterator[str]:
    """Yield how many records of each signal the store holds, each record once."""
    for signal in SIGNALS:
        queries = (f"SELECT count() FROM {table.view}" for table in signal.tables)
        if count := sum(int(store.query(query).item()) for query in queries):
            yield signal.quantity_of(count)


def _newest_runs(store: Store, signal: Signal) -> list[str]:
    [table] = signal.tables
    sql = (
        f"SELECT RunId AS run FROM {table.view} WHERE run != '' GROUP BY run "
        f"ORDER BY max({table.time}) DESC LIMIT {MAX_RUNS + 1}"
    )
    runs = [str(run) for run in store.query(sql)["run"]]
    return [*runs[:MAX_RUNS], *["…"] * (len(runs) > MAX_RUNS)]


def _opened(out: Path | None) -> Any:
    if out is None:
        return nullcontext(sys.stdout.buffer)
    openers: dict[str, Any] = {".gz": gzip.open, ".zst": zstd.open}
    opened: IO[bytes] = openers.get(out.suffix, open)(out, "wb")
    return opened


BATCH_RECORDS = 512
"""Records of one request, as OpenTelemetry's exporters send them."""


def to_json_line(request: Any) -> bytes:
    """Return a request as a line of JSON."""
    return orjson.dumps(otlp_json.message_to_json(request)) + b"\n"


def to_framed_protobuf(request: Any) -> bytes:
    """Return a request as protobuf after its length."""
    body = bytes(request.SerializeToString())
    return len(body).to_bytes(4, "big") + body


FORMATS: dict[str, Callable[[Any], bytes]] = {"json": to_json_line, "proto": to_framed_protobuf}


def count_invalid_ids(
    store: Store, where: str, params: dict[str, object], signal: Signal = TRACES
) -> int:
    """Return the number of records that OTLP cannot contain because of their ids."""
    queries = (
        f"SELECT count() FROM {table.view} WHERE ({where}) AND NOT ({table.valid_ids})"
        for table in signal.tables
    )
    return sum(int(store.query(query, params).item()) for query in queries)


def export_requests(
    store: Store, where: str, params: dict[str, object], signal: Signal = TRACES
) -> Iterator[Any]:
    """Yield requests with the records that `where` selects: each once, rollout by rollout."""
    for _, request in export_batches(store, where, params, signal):
        yield request


def export_batches(
    store: Store, where: str, params: dict[str, object], signal: Signal
) -> Iterator[tuple[int, Any]]:
    """Yield the requests of `export_requests`, each with its number of records."""
    for table in signal.tables:
        columns = ", ".join(f"`{name}`" for name in table.columns)
        condition = f"({where}) AND {table.valid_ids}"
        sql = (
            f"SELECT {columns} FROM {table.view} WHERE {condition} "
            f"ORDER BY {table.order} {schema.ordered_read_settings()}"
        )
        frames = (
            store.stream(sql, params)
            if table.order
            else rollout_stream.stream_rollouts(store, columns, condition, params)
        )
        rows = (row for frame in frames for row in to_rows(frame))
        while batch := list(islice(rows, BATCH_RECORDS)):
            yield len(batch), table.to_request(batch)
