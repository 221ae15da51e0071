"""Starts and stops an online run with its services, learner and runner.

However the run ends, by ctrl-C or SIGTERM too, everything that it started is stopped in reverse
order. Services that ran before keep running.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_train import gpu
from ltrain_train.errors import BadCheckpoint, BadRun
from ltrain_train.gateway import LENGTH_SETTING, GatewayClient, gateway_secret
from ltrain_train.learner import LearnerClient
from ltrain_train.loop.journal import Journal, Wave, open_journal
from ltrain_train.loop.online import OnlineRun
from ltrain_train.loop.progress import Progress
from ltrain_train.loop.report import Phases, describe_places, describe_start
from ltrain_train.loop.retry import retry_publish, retry_store
from ltrain_train.loop.services import Services
from ltrain_train.loop.trackers import open_trackers
from ltrain_train.loop.update import Updater
from ltrain_train.policy import (
    VLLM_DTYPES,
    Policies,
    current_prompts,
    find_reference,
    held_reference,
    read_adapter_config,
    resolve_dtype,
)
from ltrain_train.processes import Children, RunLock
from ltrain_train.rollout import AttemptLog, Runner, check_leases, load_tasks, rollout_logs
from ltrain_train.schedule import check_domains
from ltrain_train.store import open_service_provider, require_own_store
from ltrain_transforms.recipe import Recipe, Rollout, Serve, Train

_logger = logging.getLogger("ltrain.loop")

POLL = 0.2
"""Seconds between two checks of the services that are starting."""


LONGEST_PROMPT_SQL = f"""
SELECT max(InTokens) AS longest FROM otel.spans
WHERE ScopeName = '{attributes.SCOPE_GATEWAY}'
    OR (GenAiOp IN ('chat', 'text_completion') AND ScopeName != '{attributes.SCOPE_RUNNER}')
"""
"""Other spans may have the sum of several calls: agents have that of theirs. Judges call others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The recipe and the folders of a run."""

    recipe: Recipe
    folder: Path
    """Folder of the recipe's files and modules."""
    home: Path
    model: Path | None = None
    """Model directory that becomes version 0 of a new policy."""

    def __post_init__(self) -> None:
        """Check that this learner can train on the recipe's credit.

        Raises:
            BadRun: when the estimator needs a critic.
        """
        if self.recipe.credit.uses_critic:
            estimator = self.recipe.credit.outcome.estimator
            raise BadRun(
                f"credit.outcome.estimator = '{estimator}' needs a trainer with a critic, and "
                f"train.loss = '{self.recipe.train.loss}' has none. `ltrain build` writes rows for "
                "such a trainer; to train here, choose an estimator that computes advantages, such "
                "as 'grpo'."
            )

    @property
    def policy(self) -> str:
        """Name of the trained policy."""
        return self.recipe.policy[0].name

    @property
    def train(self) -> Train:
        """The training settings, with `dtype = "auto"` resolved for this machine."""
        return resolve_dtype(self.recipe.train)

    @property
    def name(self) -> str:
        """Name of the run: the recipe's `source.run`, or the folder's name."""
        return self.recipe.source.run or self.folder.resolve().name

    @property
    def serve_arguments(self) -> list[str]:
        """The arguments of `ltrain serve` that the recipe's [serve] sets.

        Raises:
            BadRun: when the chat template does not exist.
        """
        return serve_arguments(self.recipe.serve, self.train, self.folder)

    def policies(self) -> Policies:
        """Return the home's policies, after registering the model as version 0 of a new policy.

        Raises:
            BadRun: when the policy is a prompt.
        """
        policies = Policies(self.home)
        if self.model is not None and not policies.versions(self.policy):
            policies.register(self.policy, self.model)
        if self.policy in current_prompts(policies):
            raise BadRun(
                f"The policy '{self.policy}' is a prompt, which has no weights to train. Name the "
                "model that answers in [[policy]], and the prompt in [prompt] with its critic: "
                "`ltrain apo` optimizes it."
            )
        return policies

    @property
    def rollout(self) -> Rollout:
        """The recipe's rollout section.

        Raises:
            BadRun: when the recipe has none.
        """
        if self.recipe.rollout is None:
            raise BadRun(
                "An online run needs tasks and an agent: a [rollout] section in the recipe, or "
                "--tasks FILE --agent module:function --reward module:function."
            )
        return self.recipe.rollout


def serve_arguments(serve: Serve, train: Train, folder: Path) -> list[str]:
    """Return the arguments of `ltrain serve` that a recipe's [serve] sets.

    Args:
        serve: the section.
        train: the recipe's [train].
        folder: folder of the recipe.

    Raises:
        BadRun: when the chat template does not exist.
    """
    if serve.chat_template is not None and not (folder / serve.chat_template).is_file():
        raise BadRun(
            f"serve.chat_template = '{serve.chat_template}': there is no such file in "
            f"{folder.resolve()}. Name a Jinja file."
        )
    return serve.arguments(folder, VLLM_DTYPES[resolve_dtype(train).dtype], train)


def run_online(
    plan: Plan,
    on_wave: Callable[[Wave], None],
    lock: RunLock,
    *,
    on_start: Callable[[str], None],
    progress: Progress,
) -> Journal:
    """Run the agent, train and publish, until the recipe's updates are done.

    The guards of the started processes hold `lock` until these have ended.

    Args:
        on_wave: called with each finished wave.
        on_start: called with sentences about the run, such as where it starts.
        progress: what the run does right now.

    Raises:
        BadRun: when the recipe has no tasks or no agent.
        ForeignStore: when the collector on this machine belongs to another home.
        RunInUse: when a runner on another machine has open attempts of the run.
    """
    require_own_store(plan.home)
    rollout = plan.rollout
    tasks = load_tasks(plan.folder / rollout.tasks)
    check_domains(tasks, rollout.domains)
    check_spare(len(tasks), rollout)
    validation = load_tasks(plan.folder / rollout.validation) if rollout.validation else []
    policies = plan.policies()
    journal = open_journal(
        plan.home / "runs",
        plan.name,
        recipe=plan.recipe.digest,
        updates=plan.train.updates,
        current=policies.read_version(plan.policy, policies.current(plan.policy)),
    )
    with ExitStack() as stack, lock.working():
        progress.show("loading the model: the learner and vLLM start, about a minute")
        services = stack.enter_context(
            Services(
                plan.home,
                policy=plan.policy,
                serve=plan.serve_arguments,
                keep_open=lock.descriptors,
            )
        )
        log, trust = AttemptLog(journal.folder), plan.recipe.source.trust
        rename = "with source.run in the recipe"
        check_leases(services.store_url, journal.run, log, rename=rename, trust=trust)
        on_start(describe_start(journal, plan.recipe, len(tasks), len(validation)))
        on_start(describe_places(plan.home, services.store_url, services.gateway_url))
        if gpus := gpu.describe_use():
            on_start(gpus)
        stack.enter_context(held_reference(policies, plan.train))
        base, learner = make_learner(plan, policies, journal.latest, lock)
        stack.enter_context(learner)
        stack.callback(services.stop_gateway)  # it ends while the learner ends
        services.start()
        if plan.recipe.serve != Serve() and not services.starts_gateway:
            _logger.warning(
                "ltrain: [serve] has no effect, because the gateway at %s runs already",
                services.gateway_url,
            )
        while not services.ready():
            learner.ready()  # raises its errors; it may load on while the first rollouts run
            time.sleep(POLL)
        secret = gateway_secret(plan.home)
        given_up = services.gateway_given_up
        gateway = GatewayClient(services.gateway_url, secret, given_up=given_up)
        stack.callback(gateway.close)
        if plan.train.lora_rank:
            on_start(f"{gateway.publish_choice(plan.policy).describe()}.")
        provider = open_service_provider("ltrain-loop", plan.home)
        stack.callback(provider.shutdown)
        store = stack.enter_context(Store.open(services.store_url))
        warn_of_long_prompts(store, gateway.max_model_len())
        phases = Phases()
        record = stack.enter_context(open_trackers(plan.train.trackers, journal, on_start))

        def report(wave: Wave) -> None:
            record(wave)
            on_wave(wave)

        return OnlineRun(
            recipe=plan.recipe,
            rollout=rollout,
            journal=journal,
            store=store,
            runner=stack.enter_context(make_runner(plan, journal.run, services, secret, lock)),
            updater=Updater(plan.recipe, policies, learner, gateway, provider, phases, base=base),
            phases=phases,
            tasks=tasks,
            validation=validation,
            home=plan.home,
            on_wave=report,
            notify=on_start,
            version=_serve_version(journal, policies, gateway),
            logs=rollout_logs(plan.home),
            progress=progress,
        ).run()


def check_spare(tasks: int, rollout: Rollout) -> None:
    """Check that a wave has enough tasks to leave some running.

    Raises:
        BadRun: when it has not: then it would wait for all of them.
    """
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


def _serve_version(journal: Journal, policies: Policies, gateway: GatewayClient) -> int:
    """Make the gateway serve the run's latest version, and return that version.

    It is published even if it is current, because a server's weights are unknown after a crash.
    """
    version = journal.latest
    policies.path(journal.policy, version)
    retry_publish(lambda: gateway.publish(journal.policy, version))
    return version


def make_learner(
    plan: Plan, policies: Policies, version: int, lock: RunLock
) -> tuple[int, LearnerClient]:
    """Return a learner that continues from a version, and the version whose weights it loads.

    The checkpoint of the version has its weights as they were before they were rounded for the
    server, and the optimizer. Without one that fits, the learner starts from what is served.

    Raises:
        BadRun: when that is an adapter of another rank than the recipe trains.
    """
    found = policies.find_checkpoint(plan.policy, version)
    manifest = policies.read_version(plan.policy, version)
    base, checkpoint = found or (manifest.weights_version, None)
    learner = _new_learner(plan, policies, base, lock, checkpoint=checkpoint)
    try:
        learner.check_fit()
        if found is None and manifest.parent is not None:
            raise BadCheckpoint(f"v{version} of '{plan.policy}' has no checkpoint.")
    except BadCheckpoint as error:
        served = "adapter" if manifest.artifact == "adapter" else "rounded weights"
        _logger.warning(
            "ltrain: %s Training starts from the %s of v%d, with a new optimizer.",
            error,
            served,
            version,
        )
        adapter = _require_rank(plan, policies, version) if served == "adapter" else None
        base = manifest.weights_version
        return base, _new_learner(plan, policies, base, lock, adapter=adapter)
    return base, learner


def _require_rank(plan: Plan, policies: Policies, version: int) -> Path:
    """Return the adapter of a version, if it has the rank that the recipe trains."""
    adapter = policies.path(plan.policy, version)
    rank = read_adapter_config(adapter).r
    if rank != plan.train.lora_rank:
        raise BadRun(
            f"v{version} of '{plan.policy}' is an adapter of rank {rank}, and train.lora_rank is "
            f"{plan.train.lora_rank}. Set train.lora_rank = {rank}, or train from full weights: "
            f"`ltrain policy export {plan.policy}@{version} FOLDER --merged`, then `ltrain policy "
            f"add {plan.policy} FOLDER` and `ltrain policy use`."
        )
    return adapter


def _new_learner(
    plan: Plan,
    policies: Policies,
    base: int,
    lock: RunLock,
    *,
    checkpoint: Path | None = None,
    adapter: Path | None = None,
) -> LearnerClient:
    return LearnerClient(
        plan.train,
        policies.path(plan.policy, base),
        directory=plan.home / "logs",
        policy=plan.policy,
        recipe=plan.recipe.digest,
        home=plan.home,
        checkpoint=checkpoint,
        adapter=adapter,
        reference=find_reference(policies, plan.train, plan.policy, base),
        seed=plan.recipe.rollout.seed if plan.recipe.rollout else 0,
        ranks=plan.train.ranks,
        children=Children(lock.descriptors),
    )


def make_runner(plan: Plan, run: str, services: Services, secret: str, lock: RunLock) -> Runner:
    """Return the runner of the plan's agent, with the gateway of the services."""
    rollout = plan.rollout
    return Runner(
        run=run,
        agent=rollout.agent,
        reward=rollout.reward,
        folder=plan.folder,
        gateway=services.gateway_url,
        gateway_given_up=services.gateway_given_up,
        secret=secret,
        policy=plan.policy,
        home=plan.home,
        workers=rollout.workers,
        concurrency=rollout.concurrency,
        timeout=rollout.timeout,
        reward_timeout=rollout.reward_timeout,
        reward_concurrency=rollout.reward_concurrency,
        reward_rate=rollout.reward_rate,
        agent_sees=rollout.agent_sees,
        allow=rollout.allow,
        pin_version=rollout.pin_version,
        judges=plan.recipe.judges,
        services=plan.recipe.service,
        secrets=plan.recipe.secrets,
        keep_open=lock.descriptors,
    )
