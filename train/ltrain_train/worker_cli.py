"""The commands `ltrain worker` and `ltrain worker-key`."""

from pathlib import Path
from typing import Annotated

import typer

from ltrain_instrument import settings

app = typer.Typer()

DAY = 86400.0


@app.command()
def worker(
    url: Annotated[str, typer.Argument(help="URL of the gateway, such as https://trainer:8000.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: the agent as a command, e.g. -- python agent.py"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help=f"Worker key of the gateway; default: {settings.WORKER_KEY.name}, which other "
            "users of the machine cannot see."
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent as module:function, run in worker processes.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 2,
    concurrency: Annotated[
        int,
        typer.Option(min=1, help="Rollouts at a time in one process; a command always runs one."),
    ] = 16,
) -> None:
    """Run rollouts on this machine for a gateway elsewhere, until ctrl-C.

    Example: ltrain worker http://127.0.0.1:8000 --key KEY --agent agent:solve
    """
    import shlex

    if bool(agent) == bool(command):
        raise typer.BadParameter(
            "Name the agent exactly once: --agent module:function, or -- COMMAND..."
        )
    secret = key or settings.WORKER_KEY.read()
    if not secret:
        raise typer.BadParameter(
            f"A worker needs a key: --key KEY or {settings.WORKER_KEY.name}. `ltrain worker-key` "
            "prints one where the gateway runs."
        )
    from ltrain_train.remote import WorkerOptions, run_worker

    run_worker(
        WorkerOptions(
            url=url,
            key=secret,
            agent=agent or shlex.join(command or []),
            folder=Path.cwd(),
            home=settings.HOME.read(),
            workers=workers,
            concurrency=concurrency,
        ),
        lambda line: typer.echo(f"ltrain: {line}"),
    )


@app.command("worker-key")
def worker_key(
    days: Annotated[float, typer.Option(min=0.01, help="Days until the key expires.")] = 30.0,
) -> None:
    """Print a key for `ltrain worker`; run it where the gateway runs.

    Example: ltrain worker-key --days 7
    """
    from ltrain_collector.access import Kind, sign_kind
    from ltrain_train.store import home_secret

    typer.echo(sign_kind(home_secret(settings.HOME.read()), Kind.WORKER, days * DAY))
