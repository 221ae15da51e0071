"""Starts and stops an online run with its services, learner and runner.

However the run ends, by ctrl-C or SIGTERM too, everything that it started is stopped in reverse
order. Services that ran before keep running.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_train import gpu
from ltrain_train.errors import BadRun
from ltrain_train.gateway import LENGTH_SETTING, GatewayClient
from ltrain_train.loop.generation import Generation
from ltrain_train.loop.online import OnlineRun
from ltrain_train.loop.policy_run import PolicyRun
from ltrain_train.loop.trackers import open_trackers
from ltrain_train.policy import Policies
from ltrain_train.processes import GpuTurn, RunLock, serve_pages
from ltrain_train.rollout import import_program, load_tasks
from ltrain_train.runs import (
    Journal,
    Phases,
    Plan,
    PolicyJournal,
    Progress,
    RunEnvironment,
    Wave,
    describe_places,
    describe_start,
    load_held_out,
    open_journal,
    retry_load,
    retry_store,
)
from ltrain_train.schedule import check_domains
from ltrain_train.store import require_own_store
from ltrain_train.updates import Learners, Updater
from ltrain_transforms.recipe import Rollout, Serve

_logger = logging.getLogger("ltrain.loop")

LONGEST_PROMPT_SQL = f"""
SELECT max(InTokens) AS longest FROM otel.spans
WHERE ScopeName = '{attributes.SCOPE_GATEWAY}'
    OR (GenAiOp IN ('chat', 'text_completion') AND ScopeName != '{attributes.SCOPE_RUNNER}')
"""
"""Other spans may have the sum of several calls: agents have that of theirs. Judges call others."""


def run_online(
    plan: Plan,
    on_wave: Callable[[Wave], None],
    lock: RunLock,
    *,
    on_start: Callable[[str], None],
    progress: Progress,
    pages: Path | None = None,
) -> Journal:
    """Run the agent, train and publish, until the recipe's updates are done.

    The guards of the started processes hold `lock` until these have ended.

    Args:
        on_start: called with sentences about the run, such as where it starts.
        progress: what the run does right now.
        pages: the file of the recipe, to serve pages on the run while it goes on.
    """
    require_own_store(plan.home)
    rollout = plan.rollout
    tasks = load_tasks(plan.folder / rollout.tasks)
    check_domains(tasks, rollout.domains)
    check_spare(len(tasks), rollout)
    held_out = load_held_out(plan.folder, rollout, tasks)
    progress.show("importing the agent and the reward")
    # before a model is loaded, and the run has a name
    import_program(plan.program, plan.home, chain(tasks, *held_out.values()))
    policies = plan.policies()
    journal = open_journal(
        plan.home / "runs",
        plan.name,
        recipe=plan.recipe.digest,
        updates=plan.train.updates,
        current=[policies.read_version(name, policies.current(name)) for name in plan.trained],
    )
    services = plan.services(lock)
    if plan.swaps and services.finds_gateway():
        plan = plan.beside_gateway(services.gateway_url)
    plans = [plan.for_policy(name) for name in plan.trained]
    with (
        journal.working(plan.train.updates),
        RunEnvironment(journal.run, plan.program, services) as environment,
        lock.working(),
    ):
        progress.show("loading the model: the learner and vLLM start, about a minute")
        environment.check_leases(journal, plan.recipe.source.trust)
        on_start(describe_start(journal, plan.recipe, len(tasks), *map(len, held_out.values())))
        on_start(describe_places(plan.home, services.store_url, services.gateway_url))
        if gpus := gpu.describe_use():
            on_start(gpus)
        if memory := plan.describe_memory():
            on_start(memory)
        record = environment.enter_context(open_trackers(plan.train.trackers, journal, on_start))
        turn = _take_turn(plan.home, environment) if plan.swaps else None
        learners = environment.enter_context(Learners(plans, policies, journal.latest, lock))
        if turn is not None:
            learners.leave_gpu()
            turn.end()  # now vLLM may start
        environment.callback(services.stop_gateway)  # it ends while the learner ends
        services.start()
        if pages is not None:
            place = (plan.home, services.store_url, pages, lock.descriptors)
            environment.enter_context(serve_pages(*place, on_start))
        if plan.recipe.serve != Serve() and not services.starts_gateway:
            _logger.warning(
                "ltrain: [serve] has no effect, because the gateway at %s runs already",
                services.gateway_url,
            )
        # until the learner has loaded its model, it and vLLM use a core each; its errors are
        # raised here
        environment.open(may_open=learners.ready)
        gateway, store = environment.gateway, environment.store
        adapters = [each.policy for each in plans if each.train.lora_rank]
        for choice in describe_choices(gateway, adapters):
            on_start(f"{choice}.")
        provider = environment.open_provider("ltrain-loop")
        warn_of_long_prompts(store, gateway.max_model_len())

        def report(wave: Wave) -> None:
            record(wave)
            on_wave(wave)

        runs = list[PolicyRun]()
        for each in plans:
            learner = learners.of(each.policy)
            updater = Updater(each.recipe, policies, learner, gateway, provider, Phases(), turn)
            own = (journal, store, updater, plan.home, plan.folder)
            version = _serve_version(journal.of(each.policy), policies, gateway)
            runs.append(PolicyRun(*own, progress.show, version))
        waves = environment.waves(plan.recipe, journal, rollout.rollouts_per_task)
        rewards = {each.policy: each.recipe.reward for each in plans}
        generation = Generation(
            waves, rewards, tasks, held_out, lambda: {r.name: r.version for r in runs}, progress
        )
        return OnlineRun(plan.train, journal, runs, learners, generation, report, on_start).run()


def _take_turn(home: Path, environment: RunEnvironment) -> GpuTurn:
    """Return the turn on the GPU, in which the learner loads its model before vLLM starts."""
    turn = GpuTurn(home)
    environment.callback(turn.close)
    if not turn.take(0):
        _logger.warning("ltrain: waiting for the GPU, which another process of %s has", home)
        turn.take()
    return turn


def describe_choices(gateway: GatewayClient, policies: Iterable[str]) -> set[str]:
    """Return what the learners of adapters publish, as soon as the gateway answers."""
    return {retry_load(partial(gateway.publish_choice, policy)).describe() for policy in policies}


def check_spare(tasks: int, rollout: Rollout) -> None:
    """Check that a wave has enough tasks to leave some running."""
    needed = rollout.tasks_per_wave + rollout.spare_tasks
    if rollout.spare_tasks and tasks < needed:
        raise BadRun(
            f"rollout.spare_tasks = {rollout.spare_tasks} and rollout.tasks_per_wave = "
            f"{rollout.tasks_per_wave} need {needed} tasks, and {rollout.tasks} has {tasks}. Add "
            "tasks, or lower one of the two."
        )


def warn_of_long_prompts(store: Store, max_model_len: int | None) -> None:
    """Log a warning if the store has a prompt that the gateway would refuse."""
    longest = retry_store(lambda: store.query(LONGEST_PROMPT_SQL)["longest"][0])
    if max_model_len is not None and longest >= max_model_len:
        _logger.warning(
            "ltrain: the store has a prompt of %d tokens, and the gateway refuses a call with more "
            "than %d tokens of prompt and response. %s",
            longest,
            max_model_len,
            LENGTH_SETTING,
        )


def _serve_version(journal: PolicyJournal, policies: Policies, gateway: GatewayClient) -> int:
    """Make the gateway serve the run's latest version, and return that version.

    It is published even if it is current, because a server's weights are unknown after a crash.
    """
    version = journal.latest
    policies.path(journal.policy, version)
    retry_load(lambda: gateway.load(journal.policy, version))
    return version
