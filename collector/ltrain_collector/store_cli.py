"""The commands `ltrain import`, `ltrain export` and `ltrain store`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ltrain_collector.command_group import CommandGroup
from ltrain_instrument.quantity import quantity

app = typer.Typer()
store_app = typer.Typer(
    cls=CommandGroup, help="Maintain a store: status, backups, pruning.", no_args_is_help=True
)
app.add_typer(store_app, name="store")

Where = Annotated[
    str | None,
    typer.Option("--store", help="chdb:///dir or http://host:8123; default: LTRAIN_STORE."),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of lines.")]


@app.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(help="A file, a folder of files, or a project of a server.")
    ],
    store: Where = None,
    as_json: Json = False,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted", help="Keep the senders in the files: for exports of your own store."
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(help="Of a server: only traces from this time on, ISO 8601 or days (7d)."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Of a server: only traces that began before this time.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Of a server: so many traces, the newest ones.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Count what the source has, and store nothing."),
    ] = False,
) -> None:
    """Store the telemetry in files or on a server; what is imported again is stored once.

    Imported records have the sender `import`, which recipes do not trust by default.

    The command reads files of the Collector's file exporter (OTLP in JSON or protobuf, with gzip,
    zstd or no compression, also rotated files), exports of Langfuse, LangSmith, Braintrust, Weave,
    Opik, Jaeger and Tempo, session files of Codex and Claude Code, trajectories in ATIF, chats and
    saved rollouts, and spans that agent-lightning 0.3 dumped, in JSON or JSONL, many also in
    parquet, Arrow or CSV. It reports unreadable records with their place, exits with status 1, and
    stores the others.

    A server is PLATFORM://HOST:PORT/PROJECT, of phoenix, mlflow, langfuse, langsmith, logfire,
    jaeger, tempo or clickhouse. This machine is asked over http, another one over https unless it
    is PLATFORM+http://. Keys come from the platform's own environment variables, such as
    PHOENIX_API_KEY. An import that was stopped goes on when it is started again.

    Example: ltrain import phoenix://127.0.0.1:6006/default --since 7d
    """
    from ltrain_collector.transfer import ImportOptions, run_import

    options = ImportOptions(since, until, limit, dry_run, trusted)
    if not run_import(source, store, options, as_json):
        raise typer.Exit(1)


@app.command()
def export(
    out: Annotated[
        Path | None,
        typer.Argument(help="The file; default: standard output. *.gz and *.zst are compressed."),
    ] = None,
    store: Where = None,
    signal: Annotated[str, typer.Option(help="A signal of OTLP, e.g. logs.")] = "traces",
    run: Annotated[str | None, typer.Option(help="Only this run; not for metrics.")] = None,
    rollout: Annotated[str | None, typer.Option(help="Only this rollout; not for metrics.")] = None,
    where: Annotated[
        str | None,
        typer.Option(help="An SQL condition on otel.spans, otel.logs or otel.metrics_*."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="json (one request per line) or proto.")
    ] = "json",
) -> None:
    """Write the records of a signal as OTLP, in the format of the Collector's file exporter.

    `ltrain import` reads it.

    Example: ltrain export demo.jsonl.zst --run demo
    """
    from ltrain_collector.query_output import ignore_closed_pipe
    from ltrain_collector.transfer import export_records

    with ignore_closed_pipe():
        export_records(out, store, run, rollout, where, form, signal)


@store_app.command()
def status(store: Where = None, as_json: Json = False) -> None:
    """Print the rows, bytes, times, parts and runs of a store, and duplicates not merged yet.

    Example: ltrain store status
    """
    from ltrain_collector.admin import store_status
    from ltrain_collector.query_output import format_report
    from ltrain_collector.store import Store

    with Store.open(store, create=False) as opened:
        typer.echo(format_report(store_status(opened), as_json))


@store_app.command()
def migrate(
    store: Where = None,
    traces: Annotated[
        str | None, typer.Option(help="A table of spans that an exporter created: database.table.")
    ] = None,
) -> None:
    """Create the tables and views that a store lacks; `ltrain up` does so when it starts.

    Example: ltrain store migrate --store clickhouse://user:pass@host:8123
    """
    from ltrain_collector.store import Store

    with Store.open(store) as opened:
        done = opened.migrate(traces)
        what = f"ran {', '.join(done.steps)}" if done.steps else "had every step"
        typer.echo(f"{opened.name} {what}; it is at version {done.version}, its views are new.")


@store_app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="A new folder, or a new file *.tar.")],
    store: Where = None,
) -> None:
    """Back up a store, also while `ltrain up` runs, and check that the backup is complete.

    Example: ltrain store backup traces.tar
    """
    from ltrain_collector.admin import backup as copy
    from ltrain_collector.store import Store

    with Store.open(store, create=False) as opened:
        count = copy(opened, target.absolute())
        typer.echo(
            f"{opened.name} is backed up to {target}: {quantity(count, 'file')}, all complete."
        )


@store_app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A backup of `ltrain store backup`.")],
    store: Where = None,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted", help="Keep the senders in the backup: for a backup of your own store."
        ),
    ] = False,
) -> None:
    """Restore a backup into an empty store.

    Without --trusted, its records get the sender `import`, which recipes do not trust by default.

    Example: ltrain store restore traces.tar --store chdb:///new/folder --trusted
    """
    from ltrain_collector.admin import describe_records
    from ltrain_collector.admin import restore as bring
    from ltrain_collector.store import Store

    with Store.open(store) as opened:
        bring(opened, source.absolute(), trusted=trusted)
        typer.echo(f"{opened.name} holds {describe_records(opened) or 'nothing'} of {source}.")


@store_app.command()
def prune(
    store: Where = None,
    older_than: Annotated[
        float | None, typer.Option(min=0, help="Days since a rollout's last span.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    mode: Annotated[str | None, typer.Option(help="Only this mode, e.g. val.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the rows; by default they are only counted.")
    ] = False,
) -> None:
    """Count old rollouts, or remove them completely; datasets built from them keep their rows.

    Log records are removed with their rollout. Metrics belong to no rollout: they are removed by
    age, and never with --run or --mode.

    Example: ltrain store prune --older-than 90 --mode val
    """
    from ltrain_collector.admin import PruneFilter, days_ago
    from ltrain_collector.admin import prune as remove
    from ltrain_collector.store import Store

    before = None if older_than is None else days_ago(older_than)
    with Store.open(store, create=False) as opened:
        for each in remove(opened, PruneFilter(before=before, run=run, mode=mode), yes):
            typer.echo(
                f"{each.table}: {quantity(each.rows, 'row')} "
                f"{('was' if each.rows == 1 else 'were') if yes else 'would be'} removed "
                f"({each.bytes / 1e6:.1f} MB on disk), {each.remaining} "
                f"{'remain' if yes else 'would remain'}."
            )
    if not yes:
        typer.echo("Nothing was removed; add --yes to remove these rows.", err=True)
        sys.stderr.flush()
