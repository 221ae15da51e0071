"""The command `ltrain reward`: record feedback by hand, or push evaluations to a platform."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def reward(
    identifier: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="The beginning of the id of a rollout, a trace or a session; or KIND:ID.",
        ),
    ] = None,
    value: Annotated[
        float | None,
        typer.Argument(help="The reward, e.g. 1 for thumbs up; without it, --comment is a note."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="The name that the recipe's `evaluation` names.")
    ] = "reward",
    comment: Annotated[str | None, typer.Option(help="The reason, one sentence.")] = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Withdraw the feedback of this name.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Push stored evaluations to phoenix://HOST or langfuse://HOST, in place of an ID.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="With --push: only evaluations of this run.")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="With --push: also the advantages of this dataset.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="chdb:///dir or http://host:8123; default: LTRAIN_STORE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of lines.")] = False,
) -> None:
    """Record a reward for an execution that has ended: feedback by hand.

    A later reward of the same name takes the place of an earlier one. A recipe reads it with
    from = "person".

    With --push, the last evaluation of each trace and call, name and source becomes an annotation
    of Phoenix (with PHOENIX_API_KEY, if it is set) or a score of Langfuse (with LANGFUSE_PUBLIC_KEY
    and LANGFUSE_SECRET_KEY). A repeated push updates them.

    Example: ltrain reward 3f2a 1 --name thumbs --comment "solved at once"
    """
    if (identifier is None) == (push is None):
        raise typer.BadParameter("Pass the ID of an execution, or --push URL.")
    if push is None and (run or dataset):
        raise typer.BadParameter("--run and --dataset belong to --push.")
    if push is not None and (comment or withdraw):
        raise typer.BadParameter("--comment and --withdraw belong to an ID.")
    if identifier is not None:
        from ltrain_collector.feedback import record_reward

        record_reward(identifier, value, name, comment, store, as_json, withdraw=withdraw)
        return
    _push(str(push), run, dataset, store, as_json)


def _push(
    url: str, run: str | None, dataset: Path | None, store: str | None, as_json: bool
) -> None:
    import json

    from ltrain_instrument.quantity import quantity
    from ltrain_transforms.annotations import push_annotations

    pushed, left_out = push_annotations(url, store, run, dataset)
    if as_json:
        typer.echo(json.dumps({"pushed": pushed, "left_out": left_out}))
        return
    typer.echo(f"{quantity(pushed, 'annotation')} {'is' if pushed == 1 else 'are'} on {url}.")
    for reason, count in sorted(left_out.items()):
        typer.echo(f"left out: {count} {reason}")
