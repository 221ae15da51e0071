"""The `ltrain` command, with the commands of every package."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ltrain_collector.cli
import ltrain_train.cli
import ltrain_transforms.cli
import ltrain_ui.cli
from ltrain_collector.command_group import CommandGroup
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.installation import install_command
from ltrain_instrument.machine import REMEDIES, visible

if TYPE_CHECKING:
    from ltrain_instrument.instrumentors import Finding

app = typer.Typer(
    cls=CommandGroup,
    help="Train the agent you already run, from the traces it already emits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the help in boxes imports rich's Markdown, half of the time of --help
    # every command inherits them
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for part in (
    ltrain_collector.cli.app,
    ltrain_transforms.cli.app,
    ltrain_train.cli.app,
    ltrain_ui.cli.app,
):
    app.add_typer(part)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib import metadata

        typer.echo(f"ltrain {metadata.version('ltrain')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Declare the options of `ltrain` itself."""


@app.command()
def demo(
    home: Annotated[
        Path | None,
        typer.Option(help="The folder of the demo; default: the next demo-N in LTRAIN_HOME."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The base model; default: models/smollm2 in LTRAIN_HOME.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the order of tasks.")] = None,
    updates: Annotated[
        int | None, typer.Option(min=1, help="Number of updates; default: that of the recipe.")
    ] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Serve the pages of `ltrain ui` while the demo runs.")
    ] = False,
) -> None:
    """Train the text-to-SQL example on this machine, from its own traces.

    Example: ltrain demo --seed 1
    """
    from ltrain.demo import run_demo

    run_demo(home, model, seed, updates, ui)


@app.command()
def doctor(
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the answer of a server.")
    ] = 1.0,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also read the store, journals, policy versions, checkpoints and datasets.",
        ),
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(help="Also print how this machine can train a Hugging Face model directory."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of lines.")] = False,
) -> None:
    """Check what is installed, reachable and misconfigured, and print a fix for each fault.

    With --deep, it also compares everything on disk with its checksums: the parts of the store's
    tables, the files of policy versions, checkpoints and datasets, and the journals of runs. With
    --model, it compares the memory of this machine, or of its first GPU, with what the model needs:
    all weights or an adapter, with and without a critic.

    The exit status is 1 when there is a fault. A note is about something optional.

    Example: ltrain doctor --deep
    """
    import os

    from ltrain_instrument.settings import pop_invalid_limits

    environ = dict(os.environ)
    pop_invalid_limits()  # before the first import of OpenTelemetry's SDK, which would fail
    from ltrain.doctor import run_checks

    findings = run_checks(environ, timeout)
    if deep:
        from ltrain.doctor_deep import run_deep_checks

        findings += run_deep_checks()
    if model is not None:
        from ltrain_train.runs import check_ways

        findings += check_ways(model)
    _print_findings(findings, as_json=as_json)


@app.command()
def check(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")] = Path("ltrain.toml"),
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face model directory of a new policy's version 0.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of lines.")] = False,
) -> None:
    """Check a recipe, its tasks, agent, reward and model before a run, without loading a model.

    The agent runs once, on the first task, with a scripted model; nothing is recorded. The exit
    status is 1 when there is a fault.

    Example: ltrain check ltrain.toml
    """
    from ltrain.doctor import vllm
    from ltrain_train.runs import check_recipe

    _print_findings([*check_recipe(recipe, model), vllm()], as_json=as_json)


def _print_findings(findings: list["Finding"], *, as_json: bool) -> None:
    """Print findings and exit with status 1 if one of them is a fault."""
    import json
    from dataclasses import asdict

    from ltrain_instrument.instrumentors import format_findings, is_healthy

    if as_json:
        result = {
            "well": is_healthy(findings),
            "findings": [asdict(finding) for finding in findings],
        }
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(format_findings(findings)))
    raise typer.Exit(0 if is_healthy(findings) else 1)


COLLECT = (
    *("chdb", "jinja2", "jsonschema", "jwt", "numpy", "orjson", "polars", "pyarrow", "pydantic"),
    *("rich", "starlette", "tenacity", "uvicorn"),
)
EXTRAS = dict.fromkeys(COLLECT, "collect")
EXTRAS |= dict.fromkeys(("aiohttp", "httpx"), "serve")
EXTRAS |= dict.fromkeys(("cloudpickle", "ray", "torch", "transformers", "verl"), "train")
"""Modules that the environment of an agent may lack, and the extra that installs each."""
TRAINING = ("demo", "dpo", "run", "sft")
"""Commands that need the extra `train`, whichever module is missed first."""


def _remedy(error: OSError) -> str:
    """Return the remedy of an error; '' if there is none. Polars has the number only as text."""
    texts = (number for number in REMEDIES if f"(os error {number})" in str(error))
    return REMEDIES.get(error.errno or next(texts, 0), "")


def main() -> None:
    """Run the command line; an `LtrainError`, or a refusal of the system, is one message."""
    try:
        app()
    except LtrainError as error:
        message = str(error)
        typer.echo(f"ltrain: {visible(message) if sys.stderr.isatty() else message}", err=True)
        sys.exit(1)
    except OSError as error:
        remedy = _remedy(error)
        if not remedy:
            raise
        what = str(error.strerror or error) + (f": '{error.filename}'" if error.filename else "")
        typer.echo(f"ltrain: {what}. {remedy}, and run the same command again.", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        extra = "train" if command in TRAINING else EXTRAS[error.name]
        typer.echo(
            f"ltrain: This command needs the extra `{extra}`: {error.name} is not installed. "
            f"Install it with: {install_command(extra)}",
            err=True,
        )
        sys.exit(1)
