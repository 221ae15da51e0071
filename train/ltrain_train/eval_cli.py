"""The command `ltrain eval`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

app = typer.Typer()


class PassThrough(TyperCommand):
    """A command whose arguments after -- are for another program: they become `context.args`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before -- only."""
        end = args.index("--") if "--" in args else len(args)
        super().parse_args(ctx, args[:end])
        ctx.args = rest = args[end + 1 :]
        return rest


@app.command("eval", cls=PassThrough)
def evaluate(
    context: typer.Context,
    tasks: Annotated[
        Path | None,
        typer.Argument(help="JSONL file of tasks; default: the recipe's rollout.validation."),
    ] = None,
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="NAME@VERSION",
            help="Version to evaluate, such as sql@3; NAME or NAME@current: the current one. "
            "Repeat for more: each is compared with the first.",
        ),
    ] = ...,  # type: ignore[assignment]
    agent: Annotated[
        str | None, typer.Option(help="The agent as module:function; default: the recipe's.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="Reward function as module:function; default: the recipe's.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Number of the reward function that is the score; default: the sum that the "
            "recipe rewards, or the only number."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rollouts of each task; more than 1 need --temperature. Default: the recipe's "
            "validation_samples, or 1.",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Temperature that the gateway imposes; default: the recipe's "
            "validation_temperature, or 0, greedy.",
        ),
    ] = None,
    fail_under: Annotated[
        float | None,
        typer.Option(
            help="Exit with status 1 if a mean is below this: with one version its score, with "
            "several each difference from the first."
        ),
    ] = None,
    lower_bound: Annotated[
        bool,
        typer.Option(
            "--lower-bound",
            help="Compare the lower end of the interval with --fail-under instead of the mean.",
        ),
    ] = False,
    recipe: Annotated[
        Path | None, typer.Option(help="The recipe; default: ltrain.toml, if there is one.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Name of the run; default: eval- and the task file's name.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: the recipe's, or 2.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rollouts at a time in one process; default: the recipe's, or 16."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="The agent's own seconds in an attempt; default: the recipe's, or 60."
        ),
    ] = None,
    agent_sees: Annotated[
        list[str] | None,
        typer.Option(help="Task key that the agent may read; default: the recipe's, or input."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the intervals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Score versions of a policy on the same tasks, with intervals and paired differences.

    Arguments after -- are the agent as a command, in place of the recipe's agent.

    Example: ltrain eval held-out.jsonl --policy sql@0 --policy sql@10 --fail-under 0
    """
    import shlex

    if agent and context.args:
        raise typer.BadParameter(
            "Name the agent at most once: --agent module:function, or -- COMMAND..."
        )
    if lower_bound and fail_under is None:
        raise typer.BadParameter("--lower-bound needs --fail-under X.")
    from ltrain_train.evaluation import EvaluationOptions, Threshold, run_evaluation

    options = EvaluationOptions(
        policies=policy,
        tasks=tasks,
        recipe=recipe,
        samples=samples,
        temperature=temperature,
        metric=metric,
        run=run,
        seed=seed,
        rollout={
            "agent": agent or (shlex.join(context.args) if context.args else None),
            "reward": reward,
            "workers": workers,
            "concurrency": concurrency,
            "timeout": timeout,
            "agent_sees": tuple(agent_sees) if agent_sees else None,
        },
    )
    threshold = None if fail_under is None else Threshold(fail_under, lower_bound)
    if not run_evaluation(options, threshold, as_json=as_json):
        raise typer.Exit(1)
