"""The commands `ltrain policy`."""

from pathlib import Path
from typing import Annotated

import typer

from ltrain_collector.command_group import CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    help="Versions of policies: list, verify, use, freeze, prune and export them.",
    no_args_is_help=True,
)

VersionArgument = Annotated[
    str, typer.Argument(metavar="NAME@VERSION", help="The policy and its version, such as sql@3.")
]


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="The policy; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of a table.")] = False,
) -> None:
    """List versions: parent, mean scores, dataset, size, and which one is current and best.

    The scores are of the rollouts that the version sampled, in validation and in training; the best
    version has the highest validation score. The lines below the table have the 95 % interval of
    each validation score over the tasks, its rollouts, and how many of them failed.

    Example: ltrain policy list sql
    """
    from ltrain_train.publishing import policy_commands

    policy_commands.list_versions(name, as_json=as_json)


@app.command()
def verify(
    version: VersionArgument,
    store: Annotated[
        str | None, typer.Option(help="Address of the store; default: LTRAIN_STORE.")
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Also repeat the update, and compare the weights.")
    ] = False,
) -> None:
    """Compare a version with its manifest, and its dataset with a new build from the store.

    The files of the version, of its checkpoint and of the dataset that it was trained on are
    compared with their digests. The dataset is built again by its own recipe, without a change on
    disk. With --retrain, the version before it is trained on the dataset once more, which takes as
    long as the update did. The exit status is 1 when something is damaged or differs.

    Example: ltrain policy verify sql@3
    """
    from ltrain_instrument.instrumentors import format_findings, is_healthy
    from ltrain_train.updates import verify_version

    findings = list(verify_version(version, store, retrain=retrain))
    typer.echo("\n".join(format_findings(findings)))
    raise typer.Exit(0 if is_healthy(findings) else 1)


@app.command()
def use(version: VersionArgument) -> None:
    """Make a version current, for example to roll back; a gateway that serves the policy loads it.

    The next `ltrain run` starts from it.

    Example: ltrain policy use sql@3
    """
    from ltrain_train.publishing import policy_commands

    policy_commands.use_version(version)


@app.command()
def freeze(
    name: Annotated[str, typer.Argument(help="The policy.")],
    reason: Annotated[str, typer.Option(help="Why, for `ltrain deploy status`.")] = "",
) -> None:
    """Let the current version answer all calls at once, and no other one become current.

    A candidate is taken back. A run that publishes a version ends with an error until `ltrain
    policy unfreeze`; the same command then goes on.

    Example: ltrain policy freeze sql --reason "an incident"
    """
    from ltrain_train.publishing import deploy_commands

    deploy_commands.freeze(name, reason)


@app.command()
def unfreeze(name: Annotated[str, typer.Argument(help="The policy.")]) -> None:
    """Let other versions become current again.

    Example: ltrain policy unfreeze sql
    """
    from ltrain_train.publishing import deploy_commands

    deploy_commands.unfreeze(name)


@app.command()
def prune(
    name: Annotated[str, typer.Argument(help="The policy.")],
    keep: Annotated[int, typer.Option(min=1, help="The newest N versions that are kept.")] = 3,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the versions; by default they are only counted.")
    ] = False,
) -> None:
    """Count old versions, or remove them and their checkpoints.

    It keeps the current version, version 0, the best one by validation, the newest ones and those
    that a gateway serves, and what these and an unfinished run need. `ltrain run` prunes by the
    same rule.

    Example: ltrain policy prune sql --keep 5 --yes
    """
    from ltrain_train.publishing import policy_commands

    policy_commands.remove_versions(name, keep=keep, yes=yes)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The policy.")],
    source: Annotated[
        Path,
        typer.Argument(
            help="A model in Hugging Face layout, an adapter in PEFT's layout, or the text file of "
            "a prompt."
        ),
    ],
    parent: Annotated[
        int | None,
        typer.Option(help="The version that it was made from; default: the current one."),
    ] = None,
) -> None:
    """Add a version that was made elsewhere: a model, a LoRA adapter of one, or a prompt.

    The first version of a policy becomes current; `ltrain policy use` makes a later one current.

    Example: ltrain policy add sql adapters/sql-lora
    """
    from ltrain_train.publishing import policy_commands

    policy_commands.add_version(name, source, parent=parent)


@app.command()
def export(
    version: VersionArgument,
    out: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    merged: Annotated[
        bool, typer.Option("--merged", help="Of an adapter: write full weights, rounded once.")
    ] = False,
) -> None:
    """Copy a version to a folder: a model, an adapter or a prompt.

    With --merged an adapter and its base become a model in Hugging Face layout.

    Example: ltrain policy export sql@3 models/sql-3 --merged
    """
    from ltrain_train.publishing import policy_commands

    policy_commands.export_version(version, out, merged=merged)
