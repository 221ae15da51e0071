"""The commands `ltrain deploy`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ltrain_collector.command_group import CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    help="A new version for a share of the users: start, promote, stop and follow it.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The policy.")]
Reason = Annotated[str, typer.Option(help="Why, for `ltrain deploy status`.")]


@app.command()
def start(
    version: Annotated[
        str,
        typer.Argument(metavar="NAME@VERSION", help="The policy and its candidate, such as sql@3."),
    ],
    share: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="The share of conversations that it answers."),
    ] = 0.1,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="The current version answers the users, and the candidate answers unseen.",
        ),
    ] = False,
    reason: Reason = "",
) -> None:
    """Let a version answer a share of the conversations of production, beside the current one.

    The version is a LoRA adapter of the weights that the gateway serves. A conversation stays with
    its version; those that began earlier stay with the current one. Typed again with another share,
    the command changes the share; without --shadow it lets users see the answers of a version that
    was in the shadow. Rollouts, and calls of NAME@VERSION, are not affected.

    Example: ltrain deploy start sql@3 --share 0.05
    """
    from ltrain_train.publishing import deploy_commands

    deploy_commands.start_candidate(version, share, reason, shadow=shadow)


@app.command()
def promote(name: Name, reason: Reason = "") -> None:
    """Make the candidate current, for all calls.

    Example: ltrain deploy promote sql --reason "fewer failed queries"
    """
    from ltrain_train.publishing import deploy_commands

    deploy_commands.promote_candidate(name, reason)


@app.command()
def stop(name: Name, reason: Reason = "") -> None:
    """Take the candidate back at once: the current version answers all calls.

    Example: ltrain deploy stop sql --reason "answers in the wrong language"
    """
    from ltrain_train.publishing import deploy_commands

    deploy_commands.stop_candidate(name, reason)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="The policy; default: all.")] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="The recipe with the rule of the trial; default: ltrain.toml."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Address of the store; default: LTRAIN_STORE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")] = False,
) -> None:
    """Show which versions answer calls, how the last candidate differs, and all stages.

    The differences of calls, feedback and evaluations have bounds that hold at every look. The
    pages of `ltrain ui` show the same with its course over time.

    Example: ltrain deploy status sql
    """
    from ltrain_train.publishing import deploy_commands

    deploy_commands.print_status(name, store, recipe, as_json=as_json)


@app.command()
def decide(
    name: Name,
    recipe: Annotated[
        Path, typer.Option(help="The recipe, whose [deploy] has the rule of the trial.")
    ] = Path("ltrain.toml"),
    store: Annotated[
        str | None, typer.Option(help="Address of the store; default: LTRAIN_STORE.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again until the candidate's trial has ended.")
    ] = False,
) -> None:
    """Promote the candidate, take it back, or let it go on, by `[deploy]` of the recipe.

    A candidate that has not answered users yet is examined by the gates first. The bounds hold at
    every look, so it may look as often as it likes.

    Example: ltrain deploy decide sql --watch
    """
    from ltrain_train.evaluation import examine_locked
    from ltrain_train.publishing import decide_candidate

    examine = partial(examine_locked, recipe, name, store)
    decide_candidate(name, recipe, store, examine, watch=watch)
