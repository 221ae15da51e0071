"""`ltrain run`: reads the recipe, trains online or once, and prints the results."""

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ltrain_collector.store import Store
from ltrain_instrument.clock import steady_time
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import BadRun, NothingToTrain
from ltrain_train.evaluation import examine
from ltrain_train.loop.run import run_online
from ltrain_train.loop.watch import Watcher
from ltrain_train.policy import Deployments, Policies
from ltrain_train.processes import RunLock
from ltrain_train.publishing import Look, describe_serving
from ltrain_train.runs import Journal, Plan, Progress, Wave, WaveRows, hold_lock, report
from ltrain_train.updates import (
    OfflineOptions,
    OfflineRun,
    TrainingInput,
    nothing_to_train,
    open_dataset,
    open_updaters,
    read_lineage,
    read_store,
    require_no_trial,
    select_input,
    train_on,
)
from ltrain_transforms.deployment_file import Deployment
from ltrain_transforms.recipe import Serve

_logger = logging.getLogger("ltrain.loop")


def train_online(plan: Plan, *, as_json: bool, pages: Path | None = None) -> Journal:
    """Run online; print where it starts, a row for each wave, and then what it achieved.

    Args:
        pages: the file of the recipe, to serve pages on the run while it goes on.

    Raises:
        BadRun: when the recipe's versions begin as canaries.
    """
    if plan.recipe.deploy.share:
        raise BadRun(
            "share of [deploy] is for versions that are trained on stored traces, by `ltrain run "
            "--once` or `--watch`. An online run samples with each new version. Remove share, or "
            "set it to 0 to make each version current for all calls."
        )
    console, began = (
        Console(highlight=False, soft_wrap=True, markup=False, emoji=False),
        steady_time(),
    )
    own_waves: list[Wave] = []
    rows = WaveRows(plan.recipe, swaps=plan.swaps)

    def on_start(sentence: str) -> None:
        if not as_json:
            with progress.paused():
                console.print(sentence)
        elif pages is not None:  # the link of the pages is not a result
            print(sentence, file=sys.stderr, flush=True)

    def on_wave(wave: Wave) -> None:
        own_waves.append(wave)
        with progress.paused():
            if as_json:
                print(json.dumps(wave.model_dump()), flush=True)
                return
            for line in rows.lines(wave):
                console.print(line)
            if left := report.time_left(own_waves, plan.train.updates):
                console.print(left)

    with _hold_lock(plan) as lock, Progress(enabled=not as_json) as progress:
        journal = run_online(plan, on_wave, lock, on_start=on_start, progress=progress, pages=pages)
    if not as_json:
        serve = plan.serve_arguments if plan.recipe.serve != Serve() else []
        console.print(report.time_spent(own_waves, began, steady_time()))
        scores = (*report.held_out_scores(journal), *report.test_scores(journal))
        for line in (*scores, *report.next_commands(journal, serve)):
            console.print(line)
    return journal


def train_once(plan: Plan, options: OfflineOptions) -> None:
    """Report the rows of a dataset, or of the store's traces, and train once on them."""
    dry_run, as_json = options.dry_run, options.as_json
    with _hold_lock(plan) as lock:
        inputs: list[tuple[Plan, TrainingInput]] = []
        for each in map(plan.for_policy, plan.trained):
            if not dry_run:
                require_no_trial(each)
            lineage = read_lineage(each, again=options.again, register=not dry_run)
            if options.from_dataset is not None:
                data = select_input(each, open_dataset(each, options.from_dataset), lineage)
            else:
                with Store.open(options.store, create=False) as opened:
                    data = read_store(each, opened, lineage, replace=options.replace)
            data.report.print(as_json=as_json, is_last=dry_run)
            inputs.append((each, data))
        _check_inputs([data for _, data in inputs])
        if dry_run:
            if not as_json:
                _print_next(plan)
            return
        trained = [(each, data) for each, data in inputs if data.report.rows]
        versions = {each.policy: data.lineage.version for each, data in trained}
        with open_updaters([each for each, _ in trained], versions, lock) as updaters:
            runs = [train_on(each, data, updaters[each.policy]) for each, data in trained]
    for (each, data), run in zip(trained, runs, strict=True):
        print_run(each, data, run, as_json=as_json)


def watch_store(plan: Plan, store: str | None, *, as_json: bool) -> None:
    """Follow a store without end; train whenever enough new executions have ended."""
    watch = plan.recipe.watch

    def on_input(data: TrainingInput) -> None:
        with progress.paused():
            data.report.print(as_json=as_json)
            if not data.report.rows:
                _logger.warning("ltrain: %s", nothing_to_train(data.report, data.selection))

    def on_update(plan: Plan, data: TrainingInput, run: OfflineRun) -> None:
        with progress.paused():
            print_run(plan, data, run, as_json=as_json)

    def on_look(name: str, look: Look) -> None:
        with progress.paused():
            fields = {"policy": name, "stage": look.moved, "deploy": look.sentence}
            print(json.dumps(fields) if as_json else look.sentence, flush=True)

    with _hold_lock(plan) as lock, Progress(enabled=not as_json) as progress:
        policies = plan.policies()
        plans = [plan.for_policy(name) for name in plan.trained]

        def examine_version(plan: Plan, version: int) -> tuple[bool, str]:
            with progress.paused():
                return examine(plan, version, lock, store)

        watcher = Watcher(plan, store, on_input, on_update, on_look, examine_version, progress)
        if not as_json:
            print(
                f"Watching executions of mode {plan.recipe.source.mode}: an update for every "
                f"{watch.executions} that ended {watch.reward_window:g} s ago. Ctrl-C ends it.",
                flush=True,
            )
        with lock.working():
            while True:
                versions = {name: policies.current(name) for name in plan.trained}
                with open_updaters(plans, versions, lock) as updaters:
                    watcher.run(updaters, versions)


def _check_inputs(inputs: Sequence[TrainingInput]) -> None:
    """Log a warning for each policy without a row, if another one has some."""
    without = [data for data in inputs if not data.report.rows]
    for data in without:
        try:
            data.check()
        except NothingToTrain as error:
            if len(without) == len(inputs):
                raise
            _logger.warning("ltrain: policy '%s' is not trained: %s", data.lineage.policy, error)


def _print_next(plan: Plan) -> None:
    """Print how to train after a dry run."""
    policies = Policies(plan.home)
    new = [
        policy.name
        for policy in plan.recipe.trained
        if not (plan.model or policy.model or policies.versions(policy.name))
    ]
    model = f" and with --model DIR, as policy '{new[0]}' has no version yet" if new else ""
    if memory := plan.describe_memory():
        print(memory)
    print(f"Nothing was trained. To train, run it without --dry-run{model}.")


def print_run(plan: Plan, data: TrainingInput, run: OfflineRun, *, as_json: bool) -> None:
    fields = data.report.as_dict() | {
        "version": run.version,
        "path": str(run.path),
        "served": run.served,
        "metrics": run.update.report.metrics,
        "alarms": [alarm.sentence for alarm in run.alarms],
    }
    if as_json:
        print(json.dumps(fields), flush=True)
        return
    print(
        f"Policy {plan.policy} v{run.version} at {run.path}: trained on "
        f"{quantity(run.update.report.rows, 'row')} of dataset {run.dataset.id}."
    )
    for sentence in run.update.left_out.sentences():
        print(sentence)
    for alarm in run.alarms:
        print(f"alarm: {alarm.sentence}")
    if plan.recipe.deploy.share and (candidate := _find_candidate(plan)) is not None:
        print(f"It is {candidate.describe()}: `ltrain deploy status {plan.policy}`.")
    print(describe_serving(plan.policy, served=run.served))
    print(f"`ltrain show {plan.policy}@{run.version}` shows what it was trained on.", flush=True)


def _find_candidate(plan: Plan) -> Deployment | None:
    return Deployments(Policies(plan.home), plan.policy).candidate()


@contextmanager
def _hold_lock(plan: Plan) -> Iterator[RunLock]:
    """Lock the plan's run and policies, as `hold_lock` does."""
    after = "the same command continues from here"
    with hold_lock(plan.home, plan.name, plan.trained, after) as lock:
        yield lock
