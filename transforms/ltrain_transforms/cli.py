"""Commands of this package: build a dataset, show it, convert it, try out rules."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ltrain_instrument.settings import HOME

app = typer.Typer()

StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="chdb:///dir or http://host:8123; default: LTRAIN_STORE."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")]


@app.command()
def build(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")] = Path("ltrain.toml"),
    store: StoreOption = None,
    out: Annotated[
        Path | None, typer.Option(help="The dataset's folder; default: .ltrain/datasets/RUN.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="The run to read; default: the recipe's source.run.")
    ] = None,
    mode: Annotated[str, typer.Option(help="train, val, prod or all.")] = "train",
    wave: Annotated[int | None, typer.Option(min=0, help="Only this wave.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Keep the waves it has, add those closed since.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes at work; default: one a core.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster that does the work instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn stored traces into a dataset: a folder of parquet files with a manifest.

    Example: ltrain build ltrain.toml --out datasets/first
    """
    from rich.console import Console

    from ltrain_collector.store import Store
    from ltrain_transforms.build import build as make
    from ltrain_transforms.progress import followed
    from ltrain_transforms.recipe import Recipe
    from ltrain_transforms.show import dataset, terminal
    from ltrain_transforms.workers import workers as at_work

    if mode not in ("train", "val", "prod", "all"):
        raise typer.BadParameter(f"'{mode}' is not a mode: train, val, prod or all.")
    loaded = Recipe.load(recipe)
    folder = out or HOME.read() / "datasets" / (run or loaded.source.run or recipe.stem)
    count = workers or len(os.sched_getaffinity(0))
    with (
        Store.open(store, create=False) as opened,
        at_work(count, ray) as crew,
        followed(trace="batches", rows="batches") as progress,
    ):
        made = make(
            opened,
            loaded,
            folder,
            run=run,
            mode=None if mode == "all" else mode,
            wave=wave,
            update=update,
            workers=crew,
            progress=progress,
        )
    if as_json:
        typer.echo((made.path / "manifest.json").read_text(), nl=False)
    else:
        terminal.show(dataset.report(made), Console())


@app.command()
def show(
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Looked for in this order: a dataset's folder or id, a policy NAME or "
            "NAME@VERSION, a run, the beginning of a rollout's id. KIND:ID (dataset, policy, run, "
            "rollout) looks for one kind only.",
        ),
    ],
    recipe: Annotated[
        Path | None,
        typer.Option(help="The recipe a rollout or run is judged by; default: ltrain.toml."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Another dataset: show how the first differs from it.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write one self-contained page to this file instead.", dir_okay=False),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a rollout, a run, a dataset or a policy version; as a page with --html.

    A rollout is a tree of calls with state, rewards, advantages, trained tokens and drops; a run is
    its curves by wave; a dataset its content and lineage; a policy version where it comes from.

    Example: ltrain show 3f2a --html rollout.html
    """
    import json

    from rich.console import Console

    from ltrain_transforms.show import terminal
    from ltrain_transforms.show.lookup import look_up

    if html is not None and as_json:
        raise typer.BadParameter("--html and --json exclude each other.")
    with Console(stderr=True).status("reading") as status:
        shown = look_up(
            identifier,
            home=HOME.read(),
            dsn=store,
            recipe=recipe,
            against=against,
            say=lambda what: status.update(f"reading {what}"),
        )
    if html is not None:
        from ltrain_transforms.show import page

        page.write(shown, html)
        typer.echo(f"{shown.title}: {html}")
    elif as_json:
        typer.echo(json.dumps(shown.data, indent=2, default=str))
    else:
        terminal.show(shown, Console())


@app.command()
def convert(
    dataset: Annotated[Path, typer.Argument(help="A dataset's folder.")],
    to: Annotated[str, typer.Option(help="tasks, sft, preferences, rendered or verl.")],
    out: Annotated[Path, typer.Option(help="The file: .jsonl; of rendered and verl .parquet.")],
    policy: Annotated[
        str | None, typer.Option(help="Only this policy's calls [default: every policy's].")
    ] = None,
    at_least: Annotated[
        float | None, typer.Option(help="sft, rendered: the least outcome of a rollout.")
    ] = None,
    best: Annotated[
        int | None, typer.Option(min=1, help="sft, rendered: so many rollouts of a group.")
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="preferences: the most pairs of a group.")] = 1,
    tokenizer: Annotated[
        Path | None, typer.Option(help="rendered: a folder with a tokenizer and chat template.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a dataset in another form: tasks to run again, chats, preference pairs, verl's prompts.

    Example: ltrain convert .ltrain/datasets/demo --to sft --at-least 1 --out best.jsonl
    """
    import json

    from ltrain_transforms.dataset import Dataset
    from ltrain_transforms.errors import writing_output
    from ltrain_transforms.exports import Options, write
    from ltrain_transforms.progress import followed

    options = Options(policy, at_least, best, pairs, tokenizer)
    with (
        writing_output(f"The form {to}", out),
        followed(read="batches", pairs="groups", write="pieces") as progress,
    ):
        told = write(Dataset.open(dataset), to, options, out, progress)
    if as_json:
        typer.echo(json.dumps(told))
        return
    typer.echo(f"{out}: {told['rows']} rows of {to} from dataset {told['dataset']}")
    for reason, count in told["drops"].items():
        typer.echo(f"left out: {count} {reason}")
    typer.echo(f"{out}.manifest.json says what each row was made from.")


@app.command()
def rules(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")] = Path("ltrain.toml"),
    store: StoreOption = None,
    run: Annotated[
        str | None, typer.Option(help="The run to read [default: the recipe's source.run].")
    ] = None,
    mode: Annotated[str, typer.Option(help="train, val, prod or all.")] = "train",
    wave: Annotated[int | None, typer.Option(min=0, help="Only this wave.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each reward of a recipe gives on stored traces, and which give nothing and why.

    Example: ltrain rules ltrain.toml --run demo --wave 3
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from ltrain_collector.store import Store
    from ltrain_transforms.progress import followed
    from ltrain_transforms.recipe import Recipe
    from ltrain_transforms.rules_report import stored
    from ltrain_transforms.rules_view import lay_out
    from ltrain_transforms.source import Selection

    if mode not in ("train", "val", "prod", "all"):
        raise typer.BadParameter(f"'{mode}' is not a mode: train, val, prod or all.")
    loaded = Recipe.load(recipe)
    selection = Selection(run=run, mode=None if mode == "all" else mode, wave=wave)
    with (
        Store.open(store, create=False) as opened,
        followed(trace="batches") as progress,
    ):
        report = stored(opened, loaded, selection, progress=progress)
    if as_json:
        said = {**asdict(report), "rules": report.rules.to_dicts()}
        typer.echo(json.dumps(said, indent=2))
    else:
        Console().print(lay_out(report))
