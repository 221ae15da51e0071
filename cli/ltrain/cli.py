"""The `ltrain` command: the commands of every package, in one."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import ltrain_collector.cli
import ltrain_train.cli
import ltrain_transforms.cli
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.terminal import visible

app = typer.Typer(
    help="Train the agent you already run, from the traces it already emits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for part in (ltrain_collector.cli.app, ltrain_transforms.cli.app, ltrain_train.cli.app):
    app.add_typer(part)


@app.command()
def demo(
    home: Annotated[
        Path | None, typer.Option(help="Its folder; default: the next demo-N of LTRAIN_HOME.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Default: models/smollm2 of LTRAIN_HOME.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides the order of tasks.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Default: the recipe's.")] = None,
) -> None:
    """Train the text-to-SQL example on this machine, from its own traces.

    Example: ltrain demo --seed 1
    """
    from ltrain.demo import run

    run(home, model, seed, updates)


@app.command()
def doctor(
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a server has to answer.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of lines.")] = False,
) -> None:
    """Say what is installed, reachable and misconfigured, each fault with its mend.

    Exit status 1 when there is a fault; a note is something that not everybody needs.

    Example: ltrain doctor --json
    """
    import json
    from dataclasses import asdict

    from ltrain.doctor import examine, healthy, report

    findings = examine(timeout)
    if as_json:
        told = {"well": healthy(findings), "findings": [asdict(each) for each in findings]}
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(report(findings)))
    raise typer.Exit(0 if healthy(findings) else 1)


STORE = (
    *("chdb", "jinja2", "jsonschema", "jwt", "numpy", "orjson", "polars", "pyarrow", "pydantic"),
    *("rich", "uvicorn"),
)
EXTRAS = dict.fromkeys(STORE, "store")
EXTRAS |= dict.fromkeys(("aiohttp", "httpx", "starlette"), "serve")
EXTRAS |= dict.fromkeys(("ray", "torch", "transformers", "verl"), "train")
"""Modules that an agent's own environment lacks, and the extra that brings each."""


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit status 1."""
    try:
        app()
    except LtrainError as error:
        message = str(error)
        typer.echo(f"ltrain: {visible(message) if sys.stderr.isatty() else message}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        extra = EXTRAS[error.name]
        typer.echo(
            f"ltrain: This command needs {error.name}, which is not installed here. "
            f"It comes with: pip install 'ltrain[{extra}]'",
            err=True,
        )
        sys.exit(1)
