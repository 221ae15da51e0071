"""Commands of this package."""

from pathlib import Path
from typing import Annotated

import typer

from ltrain_instrument import settings
from ltrain_instrument.allow import Allow
from ltrain_instrument.identity import Mode

app = typer.Typer()


@app.command(context_settings={"allow_extra_args": True})
def serve(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Argument(help="Hugging Face directory: version 0 of a policy that has none."),
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy's name, and the model's.")] = "policy",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of 127.0.0.1; 0: any.")] = 8000,
    upstream: Annotated[
        str | None, typer.Option(help="URL of a vLLM that runs already; none is started then.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="auto, bfloat16, float32 or float16; auto: what is fast here.")
    ] = "auto",
    max_model_len: Annotated[
        int, typer.Option(min=1, help="Tokens of prompt and answer together.")
    ] = 1024,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Calls computed together.")] = 64,
    kv_cache_gib: Annotated[
        int, typer.Option(min=1, help="Memory for keys and values on a CPU.")
    ] = 1,
) -> None:
    """Start vLLM behind the gateway, or join one that runs; ctrl-C stops both.

    What follows -- is passed on to vLLM.

    Example: ltrain serve .ltrain/models/smollm2 --policy sql -- --tool-call-parser hermes
    """
    from ltrain_train.gateway.server import ServeOptions
    from ltrain_train.gateway.server import serve as serve_until_stopped
    from ltrain_train.gateway.vllm import VllmOptions
    from ltrain_train.policy.precision import VLLM_NAMES, fast_dtype

    serve_until_stopped(
        ServeOptions(
            home=settings.HOME.read(),
            policy=policy,
            model=model,
            port=port,
            upstream=upstream,
            vllm=VllmOptions(
                dtype=VLLM_NAMES[fast_dtype()] if dtype == "auto" else dtype,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                kv_cache_gib=kv_cache_gib,
                extra=tuple(context.args),
            ),
        ),
        lambda line: typer.echo(f"ltrain: {line}"),
    )


@app.command()
def rollout(
    tasks: Annotated[Path, typer.Argument(help="JSONL: an id and an input a line.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: the agent as a command, e.g. -- python agent.py"),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent as module:function, run in warm workers.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="module:function: (task, result) -> number or numbers.")
    ] = None,
    per_task: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 1,
    run: Annotated[
        str | None, typer.Option(help="The run's name; default: the task file's.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="train imposes the sampling.")] = "train",
    temperature: Annotated[float, typer.Option(min=0, help="Imposed in mode train.")] = 1.0,
    gateway: Annotated[
        str | None, typer.Option(help=f"The gateway's URL; default: {settings.GATEWAY.name}.")
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy that answers.")] = "policy",
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Rollouts at a time in a process; a command has one.")
    ] = 16,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds an attempt.")] = 60.0,
    agent_sees: Annotated[
        list[str] | None,
        typer.Option(help="Key of the task that the agent sees; once for each. Default: input."),
    ] = None,
    allow: Annotated[
        list[Allow] | None,
        typer.Option(help="What calls in mode train may ask for although nobody can train them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every rollout, as JSON.")] = False,
) -> None:
    """Run tasks through an agent and keep the traces; a run that was killed goes on.

    Example: ltrain rollout train.jsonl --agent agent:solve --reward reward:score --per-task 8
    """
    import shlex

    if bool(agent) == bool(command):
        raise typer.BadParameter("Give the agent once: --agent module:function, or -- CMD...")
    from ltrain_train.rollout.drive import Drive, drive

    driven = drive(
        Drive(
            tasks=tasks,
            agent=agent or shlex.join(command or []),
            reward=reward,
            run=run,
            mode=mode,
            per_task=per_task,
            temperature=temperature,
            gateway=gateway or settings.GATEWAY.read(),
            policy=policy,
            workers=workers,
            concurrency=concurrency,
            deadline=deadline,
            agent_sees=tuple(agent_sees or ("input",)),
            allow=tuple(allow or ()),
        )
    )
    typer.echo(driven.as_json() if as_json else driven.table())
    if not driven.complete:
        raise typer.Exit(1)


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")] = Path("ltrain.toml"),
    from_clickhouse: Annotated[
        bool, typer.Option("--from-clickhouse", help="Learn from the stored traces: the default.")
    ] = False,
    from_dataset: Annotated[
        Path | None, typer.Option(help="Train once on this dataset of `ltrain build` instead.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Train once on what is stored, without an agent.")
    ] = False,
    store: Annotated[str | None, typer.Option(help="The store to train once from.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face directory that a new policy starts from.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="JSONL of tasks.")] = None,
    validation: Annotated[str | None, typer.Option(help="JSONL of held-out tasks.")] = None,
    agent: Annotated[str | None, typer.Option(help="module:function, or a command.")] = None,
    reward: Annotated[str | None, typer.Option(help="module:function that scores.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides the order of tasks.")] = None,
    updates: Annotated[int | None, typer.Option(help="Updates of an online run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a wave.")] = False,
) -> None:
    """Train a policy from stored traces; with tasks and an agent, drive the agent too.

    Example: ltrain run ltrain.toml --from-clickhouse --model .ltrain/models/smollm2
    """
    from ltrain_train.loop import command

    if from_clickhouse and from_dataset:
        raise typer.BadParameter("Give one of --from-clickhouse and --from-dataset.")
    plan = command.plan(
        recipe,
        model=model,
        updates=updates,
        tasks=tasks,
        validation=validation,
        agent=agent,
        reward=reward,
        seed=seed,
    )
    if once or from_dataset or plan.recipe.rollout is None:
        command.once(plan, store, from_dataset, as_json=as_json)
    else:
        command.online(plan, as_json=as_json)
