"""Commands that look after a store: what goes in and out of it, and how it stands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
keep = typer.Typer(no_args_is_help=True, help="Look after a store: how it stands, copies, pruning.")
app.add_typer(keep, name="store")

Where = Annotated[
    str | None,
    typer.Option("--store", help="chdb:///dir or http://host:8123; default: LTRAIN_STORE."),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON instead of lines.")]


@app.command("import")
def take(
    path: Annotated[Path, typer.Argument(help="A file, or a folder of them.")],
    store: Where = None,
    as_json: Json = False,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted", help="Keep the senders that the files name: for exports of your own store."
        ),
    ] = False,
) -> None:
    """Store the telemetry of files, each record once, however often it is imported.

    Records of files have the sender `import`, which recipes do not trust unless they say so.

    Read is what the Collector's file exporter writes: OTLP in JSON or protobuf, packed with gzip or
    zstd or not, rotated files too; and the spans that agent-lightning 0.3 dumps as JSON. What
    cannot be read is said with its file and line, and exit status 1; all else is stored.

    Example: ltrain import traces/ --store http://127.0.0.1:8123
    """
    from ltrain_collector.transfer.command import take_in_files

    if not take_in_files(path, store, as_json, trusted):
        raise typer.Exit(1)


@app.command()
def export(
    out: Annotated[
        Path | None, typer.Argument(help="Default: standard output; *.gz and *.zst are packed.")
    ] = None,
    store: Where = None,
    signal: Annotated[str, typer.Option(help="traces, logs or metrics.")] = "traces",
    run: Annotated[str | None, typer.Option(help="Only of this run; metrics have none.")] = None,
    rollout: Annotated[
        str | None, typer.Option(help="Only of this rollout; metrics have none.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="A condition over otel.spans, otel.logs or otel.metrics_*, in SQL."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="json (a request a line) or proto.")
    ] = "json",
) -> None:
    """Write a signal's records as OTLP, as the Collector's file exporter does: what `import` reads.

    Example: ltrain export demo.jsonl.zst --run demo
    """
    from ltrain_collector.report import quietly
    from ltrain_collector.transfer.command import give_out

    with quietly():
        give_out(out, store, run, rollout, where, form, signal)


@keep.command()
def status(store: Where = None, as_json: Json = False) -> None:
    """Say what a store holds: rows, bytes, times, parts, runs, and copies that wait for a merge.

    Example: ltrain store status
    """
    from ltrain_collector.keeping import status as told
    from ltrain_collector.report import told_as
    from ltrain_collector.store import Store

    with Store.open(store, create=False) as opened:
        typer.echo(told_as(told(opened), as_json))


@keep.command()
def migrate(
    store: Where = None,
    traces: Annotated[
        str | None, typer.Option(help="A table that the exporter made elsewhere: database.table.")
    ] = None,
) -> None:
    """Make the tables and views that a store lacks, which `ltrain up` does by itself.

    Example: ltrain store migrate --store clickhouse://user:pass@host:8123
    """
    from ltrain_collector.store import Store

    with Store.open(store) as opened:
        done = opened.migrate(traces)
        what = f"ran {', '.join(done.steps)}" if done.steps else "had every step"
        typer.echo(f"{opened.name} {what}; it is at version {done.version}, its views are new.")


@keep.command()
def backup(
    target: Annotated[Path, typer.Argument(help="A new folder, or a new file *.tar.")],
    store: Where = None,
) -> None:
    """Copy a store, also while `ltrain up` has it, and check that the copy is whole.

    Example: ltrain store backup traces.tar
    """
    from ltrain_collector.backup import backup as copy
    from ltrain_collector.store import Store

    with Store.open(store, create=False) as opened:
        count = copy(opened, target.absolute())
        typer.echo(f"{opened.name} is copied to {target}: {count} files, all whole.")


@keep.command()
def restore(
    source: Annotated[Path, typer.Argument(help="What `ltrain store backup` wrote.")],
    store: Where = None,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted", help="Keep the senders that the copy names: for one of your own store."
        ),
    ] = False,
) -> None:
    """Bring a copy back into a store that holds nothing.

    Without --trusted its records have the sender `import`, which recipes do not trust unless they
    say so.

    Example: ltrain store restore traces.tar --store chdb:///new/folder --trusted
    """
    from ltrain_collector.backup import held
    from ltrain_collector.backup import restore as bring
    from ltrain_collector.store import Store

    with Store.open(store) as opened:
        bring(opened, source.absolute(), trusted=trusted)
        typer.echo(f"{opened.name} holds {held(opened) or 'nothing'} of {source}.")


@keep.command()
def prune(
    store: Where = None,
    older_than: Annotated[
        float | None, typer.Option(min=0, help="Days since a rollout's last span.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    mode: Annotated[str | None, typer.Option(help="Only this mode, e.g. val.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; else it is only counted.")] = False,
) -> None:
    """Remove old rollouts, whole ones, or say what would go. Datasets made of them keep their rows.

    Log records go with their rollout. Metrics are of no rollout: they go by their age, and stay
    where --run or --mode is given.

    Example: ltrain store prune --older-than 90 --mode val
    """
    from ltrain_collector.keeping import Choice, days_ago
    from ltrain_collector.keeping import prune as remove
    from ltrain_collector.store import Store

    before = None if older_than is None else days_ago(older_than)
    with Store.open(store, create=False) as opened:
        for each in remove(opened, Choice(before=before, run=run, mode=mode), yes):
            typer.echo(
                f"{each.table}: {each.rows} rows {'went' if yes else 'would go'} "
                f"({each.bytes / 1e6:.1f} MB on disk), {each.kept} {'are' if yes else 'would be'} "
                "left."
            )
    if not yes:
        typer.echo("Nothing was removed; --yes does it.", err=True)
        sys.stderr.flush()
