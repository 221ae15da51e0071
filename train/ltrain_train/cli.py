"""Commands of this package."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ltrain_collector.command_options import with_options
from ltrain_instrument import settings
from ltrain_instrument.allow import Allow
from ltrain_instrument.identity import Mode, SourceMode
from ltrain_train import (
    deploy_cli,
    environment_cli,
    eval_cli,
    finetune_cli,
    policy_cli,
    serve_cli,
    worker_cli,
)
from ltrain_train.named_store import FROM_CLICKHOUSE, OptionalSource, named_store

if TYPE_CHECKING:
    from ltrain_train.sandboxes import SandboxSettings

app = typer.Typer()
app.add_typer(policy_cli.app, name="policy")
app.add_typer(deploy_cli.app, name="deploy")
for module in (environment_cli, eval_cli, finetune_cli, serve_cli, worker_cli):
    app.add_typer(module.app)


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """The reward of a program."""

    reward: Annotated[
        str | None,
        typer.Option(
            help="Reward: module:function of (task, result), a command or a URL, as in a recipe."
        ),
    ] = None
    reward_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for the reward of one result.")
    ] = 60.0
    reward_concurrency: Annotated[
        int, typer.Option(min=1, help="Results that are judged at a time.")
    ] = 8
    reward_rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Most calls of the reward in a second; default: no limit."),
    ] = None


@dataclass(frozen=True, slots=True)
class ProgramOptions(RewardOptions):
    """The reward and the limits of a program."""

    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 2
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rollouts at a time in one process; default: 16, fewer while the model server is "
            "too slow. A command always runs one.",
        ),
    ] = None
    python: Annotated[
        str | None,
        typer.Option(help="Python of the agent's own environment; default: that of ltrain."),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, help="The agent's own seconds in an attempt; model calls do not count."
        ),
    ] = 60.0
    wall_timeout: Annotated[
        float | None,
        typer.Option(min=0.1, help="All seconds of an attempt; default: --timeout and 20 minutes."),
    ] = None
    max_calls: Annotated[
        int, typer.Option(min=1, help="Answered model calls of an attempt; more get status 400.")
    ] = 200
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Sampled tokens of an attempt; calls after that get status 400."),
    ] = None
    agent_sees: Annotated[
        list[str] | None,
        typer.Option(help="Task key that the agent may read; repeat for more. Default: input."),
    ] = None
    allow: Annotated[
        list[Allow] | None,
        typer.Option(help="Untrainable request feature to accept in mode train; repeat for more."),
    ] = None


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """The sandbox of each attempt; options have the names of a recipe's keys."""

    sandbox: Annotated[
        str | None,
        typer.Option(
            help="Isolate each attempt of a command: bubblewrap, docker, podman or command."
        ),
    ] = None
    workspace: Annotated[
        str | None,
        typer.Option(
            help="Folder whose copy each attempt gets; {id} in it is a value of the task."
        ),
    ] = None
    visible: Annotated[
        list[str] | None,
        typer.Option(help="File or folder that attempts can read, too; repeat for more."),
    ] = None
    image: Annotated[str | None, typer.Option(help="Image of docker or podman.")] = None
    sandbox_command: Annotated[
        str | None, typer.Option(help="Command line of --sandbox command.")
    ] = None


@dataclass(frozen=True, slots=True)
class WaveOptions:
    """The rollouts of `ltrain rollout`."""

    rollouts_per_task: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 1
    run: Annotated[
        str | None, typer.Option(help="Name of the run; default: the name of the task file.")
    ] = None
    mode: Annotated[Mode, typer.Option(help="In mode train the gateway imposes the sampling.")] = (
        "train"
    )
    temperature: Annotated[
        float, typer.Option(min=0, help="Temperature that the gateway imposes in mode train.")
    ] = 1.0
    policy: Annotated[str, typer.Option(help="Policy that answers the calls.")] = "policy"


@app.command()
@with_options
def rollout(
    tasks: Annotated[Path, typer.Argument(help="JSONL file: one task with id and input a line.")],
    wave: WaveOptions,
    options: ProgramOptions,
    sandbox: SandboxOptions,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: the agent as a command, e.g. -- python agent.py"),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent as module:function, run in worker processes.")
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(help=f"URL of the gateway; default: {settings.GATEWAY.name}.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="URL of a gateway whose workers (`ltrain worker`) run the agent."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every rollout as JSON.")] = False,
) -> None:
    """Run tasks through an agent and store the traces; a killed run continues where it stopped.

    Example: ltrain rollout train.jsonl --agent agent:solve --reward reward:score
    """
    import shlex

    if sum(map(bool, (agent, command, to))) != 1:
        raise typer.BadParameter(
            "Name the agent exactly once: --agent module:function, -- COMMAND..., or --to URL for "
            "the agent of remote workers."
        )
    if to and gateway:
        raise typer.BadParameter("--to names the gateway already. Remove --gateway.")
    from ltrain_train.rollout import AgentProgram, TaskRun, run_tasks

    agent = None if to else agent or shlex.join(command or [])
    program = AgentProgram(
        folder=Path.cwd(),
        agent=agent,
        sandbox=_sandbox_settings(sandbox, agent, tasks, options.reward),
        **{name: value for name, value in asdict(options).items() if value is not None},
    )
    url = to or gateway or settings.GATEWAY.read()
    summary = run_tasks(TaskRun(program=program, tasks=tasks, gateway=url, **asdict(wave)))
    typer.echo(summary.as_json() if as_json else summary.table())
    if not summary.succeeded:
        raise typer.Exit(1)


def _sandbox_settings(
    options: SandboxOptions, agent: str | None, tasks: Path, reward: str | None
) -> "SandboxSettings | None":
    own = {name: value for name, value in asdict(options).items() if value is not None}
    if not own:
        return None
    from pydantic import ValidationError

    from ltrain_train.sandboxes import SandboxSettings
    from ltrain_transforms.recipe import Rollout

    program = {"tasks": str(tasks), "agent": agent, "remote": agent is None, "reward": reward}
    try:
        section = Rollout.model_validate(program | own)
    except ValidationError as error:
        raise typer.BadParameter(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    return SandboxSettings.from_section(section, Path.cwd())


@app.command()
def apo(
    recipe: Annotated[
        Path, typer.Argument(help="The recipe; its section prompt names the critic.")
    ] = Path("ltrain.toml"),
) -> None:
    """Optimize a prompt: a critic model edits it, and rollouts decide which edit is better.

    The best version becomes current. A killed search continues where it stopped.

    Example: ltrain apo ltrain.toml
    """
    from ltrain_train.prompts import optimize_prompt

    optimize_prompt(recipe)


@app.command()
@with_options
def score(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    options: RewardOptions,
    judge: Annotated[
        str | None, typer.Option(help="Evaluation of a judge of the recipe, in place of --reward.")
    ] = None,
    recipe: Annotated[Path, typer.Option(help="With --judge: the recipe with the judge.")] = Path(
        "ltrain.toml"
    ),
    name: Annotated[str, typer.Option(help="Name of the value, in place of `reward`.")] = "reward",
    store: Annotated[
        str | None, typer.Option(help="Store with the run; default: LTRAIN_STORE.")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="Sender whose rollouts count, as in source.trust; repeat for more."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Judge the stored rollouts of a run again; a new value takes the place of an old one.

    Example: ltrain score text-to-sql --reward reward:score
    """
    if (options.reward is None) == (judge is None):
        raise typer.BadParameter("Name what judges exactly once: --reward or --judge.")
    from ltrain_train.rollout import AgentProgram, find_judge, score_stored_run

    program = AgentProgram(
        folder=Path.cwd(),
        judges={} if judge is None else {judge: find_judge(recipe, judge)},
        **asdict(options),
    )
    report = score_stored_run(run, program, store=store, name=name, trust=trust or ())
    typer.echo(report.as_json() if as_json else report.as_text())
    if report.failed or report.unseen:
        raise typer.Exit(1)


@app.command(cls=OptionalSource)
def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")] = Path("ltrain.toml"),
    from_clickhouse: Annotated[
        str | None,
        typer.Option(
            FROM_CLICKHOUSE,
            metavar="[URL]",
            help="Train on the stored traces (the default); with a URL on those of any ClickHouse, "
            "clickhouse://HOST/DATABASE with the tables of OpenTelemetry's exporter.",
        ),
    ] = None,
    from_dataset: Annotated[
        Path | None, typer.Option(help="Train once on this dataset of `ltrain build` instead.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Train once on the stored traces, without an agent.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Training once: also on rollouts that the policy was trained on before."
        ),
    ] = False,
    mode: Annotated[
        SourceMode | None,
        typer.Option(help="With --once or --watch: the mode to read, else the recipe's."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Follow the store without end, and train as the recipe's watch says."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --once: report what there is to train on only.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Training once: replace a dataset that a version was trained on."
        ),
    ] = False,
    store: Annotated[
        str | None, typer.Option(help="Store to read when training once; default: LTRAIN_STORE.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face model directory of a new policy's version 0.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="JSONL file of training tasks.")] = None,
    validation: Annotated[str | None, typer.Option(help="JSONL file of held-out tasks.")] = None,
    test: Annotated[
        str | None,
        typer.Option(help="JSONL file of tasks that score the first and the last version."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent as module:function or as a command.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="The reward function as module:function.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the order of tasks.")] = None,
    updates: Annotated[
        int | None, typer.Option(help="Number of policy updates of an online run.")
    ] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Serve the pages of `ltrain ui` while the run goes on.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object for each wave; training once: one."),
    ] = False,
) -> None:
    """Train a policy from stored traces; with tasks and an agent, run the agent too.

    Training once, it first reports what there is to train on, what is left out and why; `ltrain
    run --once --mode prod --dry-run` does so for production traffic and trains nothing.

    Example: ltrain run ltrain.toml --from-clickhouse --model .ltrain/models/smollm2
    """
    from ltrain_train.loop import command
    from ltrain_train.runs import make_plan
    from ltrain_train.updates import OfflineOptions

    if from_clickhouse is not None and from_dataset:
        raise typer.BadParameter(
            "--from-clickhouse and --from-dataset exclude each other. Use one of them."
        )
    offline = once or watch
    for option, is_set in (("--dry-run", dry_run and not watch), ("--mode", mode is not None)):
        if is_set and not offline:
            raise typer.BadParameter(f"{option} is for training once. Add --once.")
    excluded = {"--once": once, "--from-dataset": from_dataset, "--dry-run": dry_run}
    excluded |= {"--again": again, "--replace": replace}
    for option in (name for name, is_set in excluded.items() if watch and is_set):
        raise typer.BadParameter(f"--watch follows the store. Remove {option}.")
    finetune_cli.check_source(mode, from_dataset)
    plan = make_plan(
        recipe,
        once=offline or from_dataset is not None,
        mode=mode,
        model=model,
        updates=updates,
        tasks=tasks,
        validation=validation,
        test=test,
        agent=agent,
        reward=reward,
        seed=seed,
    )
    online = plan.recipe.rollout is not None and not (offline or from_dataset)
    if from_clickhouse:
        store = named_store(from_clickhouse, store, online=online)
    if ui and not online:
        raise typer.BadParameter(
            "--ui serves pages during an online run. Remove it, and run `ltrain ui` beside."
        )
    if watch:
        command.watch_store(plan, store, as_json=as_json)
    elif not online:
        data = OfflineOptions(store, from_dataset, again, replace, dry_run, as_json)
        command.train_once(plan, data)
    elif again or replace:
        option = "--again" if again else "--replace"
        raise typer.BadParameter(
            f"{option} is for training once. Add --once or --from-dataset DIR."
        )
    else:
        command.train_online(plan, as_json=as_json, pages=recipe if ui else None)
