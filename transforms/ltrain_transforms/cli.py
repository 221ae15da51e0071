"""The commands of this package: build, show and convert a dataset, and report on rules."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ltrain_instrument.identity import SourceMode, TrainableMode
from ltrain_instrument.quantity import quantity
from ltrain_instrument.settings import HOME
from ltrain_transforms import reward_cli

if TYPE_CHECKING:
    from ltrain_transforms.reports import Report
    from ltrain_transforms.show import RolloutTree

app = typer.Typer()
app.add_typer(reward_cli.app)

StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="chdb:///dir or http://host:8123; default: LTRAIN_STORE."),
]
ModeOption = Annotated[
    SourceMode | None,
    typer.Option("--mode", help="The mode to read; default: the recipe's source.mode."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")]


@app.command()
def build(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")] = Path("ltrain.toml"),
    store: StoreOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the dataset; default: .ltrain/datasets/RUN/MODE-WAVE-POLICY, with "
            "those parts that are named."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="The run to read; default: the recipe's source.run.")
    ] = None,
    mode: ModeOption = None,
    wave: Annotated[int | None, typer.Option(min=0, help="Only this wave.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Only for this policy of several, by its rewards and keys of train."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Keep its waves and add those closed since.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another dataset in the folder.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: one per core.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster that runs the workers instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build a dataset from stored traces: a folder of parquet files with a manifest.

    Example: ltrain build ltrain.toml --out datasets/first
    """
    from rich.console import Console

    from ltrain_collector.store import Store
    from ltrain_transforms.datasets import build as build_dataset
    from ltrain_transforms.datasets import dataset_folder, open_workers, show_progress
    from ltrain_transforms.policy_file import read_base_digests
    from ltrain_transforms.recipe import Recipe
    from ltrain_transforms.rendering import find_served
    from ltrain_transforms.reports import dataset_report
    from ltrain_transforms.show import print_shown

    loaded = Recipe.load(recipe).select_policy(policy)
    name = run or loaded.source.run or recipe.stem
    folder = out or dataset_folder(HOME.read(), name, mode or loaded.source.mode, wave, policy)
    policies = HOME.read() / "policies"
    count = workers or len(os.sched_getaffinity(0))
    with (
        Store.open(store, create=False) as opened,
        open_workers(count, ray) as opened_workers,
        show_progress(trace="batches", rows="batches") as progress,
    ):
        built = build_dataset(
            opened,
            loaded,
            folder,
            run=run,
            mode=mode,
            wave=wave,
            base=read_base_digests(policies / loaded.trained[0].name),
            served=find_served(loaded, policies, recipe.parent),
            update=update,
            replace=replace,
            workers=opened_workers,
            progress=progress,
        )
    if as_json:
        typer.echo((built.path / "manifest.json").read_text(), nl=False)
    else:
        print_shown(dataset_report(built), Console())


def _write_shown(shown: "RolloutTree | Report", html: Path | None, *, as_json: bool) -> None:
    """Write a page to a file, JSON, or lines for the terminal."""
    import json

    from rich.console import Console

    from ltrain_transforms.show import print_shown, write_page

    if html is not None:
        write_page(shown, html)
        typer.echo(f"{shown.title}: {html}")
    elif as_json:
        typer.echo(json.dumps(shown.data, indent=2, default=str))
    else:
        print_shown(shown, Console())


@app.command()
def traces(
    store: StoreOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The number of lines.")] = 20,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    mode: Annotated[
        SourceMode | None, typer.Option(help="Only this mode: train, val, test or prod.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only from this time on, ISO 8601.")] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Only with a failed span.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Also those without an LLM call.")] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Report on all of one mode: agents, tools, rewards, what can train.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write the report as one page to this file.", dir_okay=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the stored rollouts and traces, the newest first, and their totals; or report on them.

    The report counts executions by agent and tool, failed and repeated calls, tokens and durations,
    rewards, what each ready rule would say, and what could be trained. It reads one mode: --mode,
    else the one with the most traces.

    Example: ltrain traces --errors --since 2026-01-31
    """
    from ltrain_collector.store import Store

    if not report and html is None:
        from ltrain_collector.admin import TraceFilter, list_traces
        from ltrain_transforms.source import unknown_writers

        selection = TraceFilter(run, mode, since, errors, every)
        with Store.open(store, create=False) as opened:
            unread = unknown_writers(opened, selection)
            list_traces(opened, selection, limit, as_json, unread)
        return
    if errors or every:
        raise typer.BadParameter("--errors and --all are for the list. Remove them for a report.")
    from ltrain_transforms.datasets import show_progress
    from ltrain_transforms.reports import traffic_report
    from ltrain_transforms.source import traffic_source

    with Store.open(store, create=False) as opened, show_progress(trace="batches") as progress:
        source = traffic_source(opened, run=run, mode=mode, since=since)
        found = traffic_report(opened, source, progress=progress)
    _write_shown(found, html, as_json=as_json)


@app.command()
def show(
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Searched in this order: the folder or id of a dataset, a policy NAME or "
            "NAME@VERSION, a run, the beginning of the id of a rollout, a trace or a session, the "
            "id of a span. KIND:ID (dataset, policy, run, rollout, trace, session, span) searches "
            "one kind only.",
        ),
    ],
    recipe: Annotated[
        Path | None, typer.Option(help="The recipe with the rewards; default: ltrain.toml.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Another dataset, to show how the first one differs from it.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write one self-contained page to this file.", dir_okay=False),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a rollout, trace, session, run, dataset or policy version; as a page with --html.

    A rollout, a trace and a session are shown as a tree of calls with state, rewards, advantages,
    trained tokens and drops; a run as curves by wave; a dataset with its content and lineage; a
    policy version with its lineage.

    Example: ltrain show 3f2a --html rollout.html
    """

    from rich.console import Console

    from ltrain_transforms.show import look_up

    if html is not None and as_json:
        raise typer.BadParameter("--html and --json exclude each other. Choose one.")
    with Console(stderr=True).status("reading") as status:
        shown = look_up(
            identifier,
            home=HOME.read(),
            dsn=store,
            recipe=recipe,
            against=against,
            report_status=lambda what: status.update(f"reading {what}"),
        )
    _write_shown(shown, html, as_json=as_json)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder of the new files.")] = Path(),
    store: StoreOption = None,
    run: Annotated[
        str | None, typer.Option(help="Read this run; default: the newest of mode train.")
    ] = None,
    mode: Annotated[
        TrainableMode | None, typer.Option(help="The mode to read; default: train, else prod.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="The model to train, in Hugging Face's layout."
        ),
    ] = None,
) -> None:
    """Write a first training from stored traces: recipe, tasks, agent and reward function.

    Tasks are the recorded inputs, some of them held out. No file is overwritten: an agent, a reward
    and tasks that exist are kept, and a recipe is refused. The printed lines say what is missing,
    and which command is next.

    Example: ltrain init my-training --mode prod
    """
    from ltrain_collector.store import Store
    from ltrain_transforms.errors import writing_output
    from ltrain_transforms.starter import take_survey, write_starter

    with Store.open(store, create=False) as opened:
        survey = take_survey(opened, run, mode)
    with writing_output("The files", folder):
        lines = write_starter(survey, folder, model)
    typer.echo("\n".join(lines))


@app.command()
def convert(
    dataset: Annotated[Path, typer.Argument(help="The folder of a dataset.")],
    to: Annotated[
        str,
        typer.Option(
            help="tasks, sft, openai, trl, preferences, sharegpt, atif, hf, rendered or verl."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="A .jsonl file; for rendered, verl: .parquet; for hf a folder.")
    ],
    policy: Annotated[
        str | None, typer.Option(help="Only the calls of this policy; default: of every policy.")
    ] = None,
    min_outcome: Annotated[
        float | None,
        typer.Option("--min", help="Formats of conversations: the minimum outcome of a rollout."),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(min=1, help="Formats of conversations: the best N rollouts of each group."),
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="preferences: at most N per group.")] = 1,
    tokenizer: Annotated[
        Path | None, typer.Option(help="rendered: a folder with a tokenizer and a chat template.")
    ] = None,
    license: Annotated[
        str | None, typer.Option(help="hf: the licence in the card, e.g. cc-by-4.0.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert a dataset to the format of another program, or to a folder for a hub.

    Example: ltrain convert .ltrain/datasets/demo/train --to sft --min 1 --out best.jsonl
    """
    import json

    from ltrain_transforms.datasets import Dataset, show_progress
    from ltrain_transforms.errors import writing_output
    from ltrain_transforms.exports import ExportOptions, export_dataset

    options = ExportOptions(policy, min_outcome, best, pairs, tokenizer, license=license)
    with (
        writing_output(f"The {to} file", out),
        show_progress(read="batches", pairs="groups", write="pieces") as progress,
    ):
        intact = Dataset.open(dataset).require_intact()
        manifest = export_dataset(intact, to, options, out, progress)
    if as_json:
        typer.echo(json.dumps(manifest))
        return
    typer.echo(
        f"{out}: {quantity(manifest['rows'], 'row')} of {to} from dataset {manifest['dataset']}"
    )
    for reason, count in manifest["drops"].items():
        typer.echo(f"left out: {count} {reason}")
    typer.echo(f"{out}.manifest.json lists what each row was made from.")


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="A folder of `ltrain convert --to hf`.")],
    repository: Annotated[str, typer.Argument(help="The repository on the hub: OWNER/NAME.")],
    public: Annotated[
        bool, typer.Option("--public", help="Everybody may read it; default: only its owner.")
    ] = False,
) -> None:
    """Push a converted dataset to the Hugging Face Hub, with the token of HF_TOKEN.

    HF_ENDPOINT names another hub. Traces hold what users wrote: read the rows before you push.

    Example: ltrain push best-chats my-team/best-chats
    """
    from ltrain_transforms.exports import push_folder

    typer.echo(push_folder(folder, repository, public=public))


@app.command()
def rules(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")] = Path("ltrain.toml"),
    store: StoreOption = None,
    run: Annotated[
        str | None, typer.Option(help="The run to read; default: the recipe's source.run.")
    ] = None,
    mode: ModeOption = None,
    wave: Annotated[int | None, typer.Option(min=0, help="Only this wave.")] = None,
    suggest: Annotated[
        bool,
        typer.Option("--suggest", help="Suggest rules: signals of good and of bad outcomes."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Report what each reward of a recipe gives on stored traces, and why some give nothing.

    With --suggest: what else the traces record that separates good outcomes from bad ones.

    Example: ltrain rules ltrain.toml --run demo --wave 3
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from ltrain_collector.store import Store
    from ltrain_transforms.datasets import show_progress
    from ltrain_transforms.recipe import Recipe
    from ltrain_transforms.reports import (
        render_report,
        render_suggestions,
        report_rules,
        suggest_rules,
    )
    from ltrain_transforms.source import Selection

    loaded = Recipe.load(recipe)
    loaded = loaded if mode is None else loaded.with_mode(mode)
    selection = Selection.of_source(loaded.source, run=run, wave=wave)
    with Store.open(store, create=False) as opened, show_progress(trace="batches") as progress:
        if suggest:
            found = suggest_rules(opened, loaded, selection, progress=progress)
            content, printed = asdict(found), render_suggestions(found)
        else:
            report = report_rules(opened, loaded, selection, progress=progress)
            content, printed = asdict(report), render_report(report)
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        Console().print(printed)
