"""How a run comes up and goes down: services, learner and runner, each owned here.

However a run ends, by ctrl-C or SIGTERM too, what it started is stopped, in reverse order; what was
running before stays.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ltrain_collector.store import Store
from ltrain_train.errors import BadRun
from ltrain_train.gateway.client import GatewayClient
from ltrain_train.gateway.keys import gateway_secret
from ltrain_train.learner.client import LearnerClient
from ltrain_train.lock import RunLock
from ltrain_train.loop.journal import Journal, Wave, open_journal
from ltrain_train.loop.online import Online
from ltrain_train.loop.patience import until_served
from ltrain_train.loop.phases import Phases
from ltrain_train.loop.services import Services
from ltrain_train.loop.update import Updater
from ltrain_train.policy.precision import fast_dtype
from ltrain_train.policy.versions import Policies
from ltrain_train.process import Children
from ltrain_train.rollout.runner import Runner
from ltrain_train.rollout.tasks import load_tasks
from ltrain_train.service_key import check_store, open_service
from ltrain_transforms.recipe import Recipe, Rollout, Train

LOOK = 0.2
"""Seconds between two looks at what is starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is started with."""

    recipe: Recipe
    folder: Path
    """Where the recipe's files and modules are."""
    home: Path
    model: Path | None = None
    """Becomes version 0 of a policy that has none."""

    def __post_init__(self) -> None:
        """Refuse credit that this learner cannot train on."""
        if self.recipe.credit.uses_critic:
            raise BadRun(
                "credit.outcome.estimator = 'gae' needs a trainer with a critic, and train.loss = "
                f"'{self.recipe.train.loss}' has none. `ltrain build` writes its rows for such a "
                "trainer; to train here, name an estimator that gives advantages, such as 'grpo'."
            )

    @property
    def policy(self) -> str:
        return self.recipe.policy[0].name

    @property
    def train(self) -> Train:
        """How to train, the precision settled for this machine."""
        train = self.recipe.train
        return train.model_copy(update={"dtype": fast_dtype()}) if train.dtype == "auto" else train

    @property
    def name(self) -> str:
        return self.recipe.source.run or self.folder.resolve().name

    def policies(self) -> Policies:
        """Open the home's policies; the model becomes version 0 of a policy that has none."""
        policies = Policies(self.home)
        if self.model is not None and not policies.versions(self.policy):
            policies.register(self.policy, self.model)
        return policies

    @property
    def rollout(self) -> Rollout:
        if self.recipe.rollout is None:
            raise BadRun(
                "An online run needs tasks and an agent: a [rollout] section in the recipe, or "
                "--tasks FILE --agent module:function --reward module:function."
            )
        return self.recipe.rollout


def run_online(plan: Plan, say: Callable[[Wave], None], lock: RunLock) -> Journal:
    """Drive the agent, train and serve, until the recipe's updates are done.

    What is started holds `lock` until it has ended.

    Raises:
        BadRun: when it lacks tasks, an agent or a model.
        StoreOfAnother: when the store that runs here is another home's.
    """
    check_store(plan.home)
    rollout = plan.rollout
    tasks = load_tasks(plan.folder / rollout.tasks)
    validation = load_tasks(plan.folder / rollout.validation) if rollout.validation else []
    policies = plan.policies()
    journal = open_journal(
        plan.home / "runs",
        plan.name,
        recipe=plan.recipe.digest,
        policy=plan.policy,
        base=policies.current(plan.policy),
    )
    with ExitStack() as stack, lock.working():
        services = stack.enter_context(
            Services(plan.home, policy=plan.policy, dtype=plan.train.dtype, held=lock.descriptors)
        )
        learner = stack.enter_context(_learner(plan, policies, journal, lock))
        stack.callback(services.release_gateway)  # it takes as long to end as the learner
        services.start()
        while not services.ready():
            learner.ready()  # it loads meanwhile, and goes on while the first answers are sampled
            time.sleep(LOOK)
        secret = gateway_secret(plan.home)
        gateway = GatewayClient(services.gateway_url, secret)
        provider = open_service("ltrain-loop", plan.home)
        stack.callback(provider.shutdown)
        phases = Phases()
        return Online(
            recipe=plan.recipe,
            rollout=rollout,
            journal=journal,
            store=stack.enter_context(Store.open(services.store_url)),
            runner=stack.enter_context(
                _runner(plan, journal.run, services.gateway_url, secret, lock)
            ),
            updater=Updater(plan.recipe, policies, learner, gateway, provider, phases),
            phases=phases,
            tasks=tasks,
            validation=validation,
            datasets=plan.home / "datasets",
            say=say,
            version=_serve(journal, policies, gateway),
        ).run()


def _serve(journal: Journal, policies: Policies, gateway: GatewayClient) -> int:
    """Make the gateway serve the version the run stands at, and give it.

    It is loaded even when it is said to be current: what a server holds after a crash is unknown.
    """
    published = [wave.published for wave in journal.waves if wave.published is not None]
    version = published[-1] if published else journal.base
    policies.path(journal.policy, version)
    until_served(lambda: gateway.publish(journal.policy, version))
    return version


def _learner(plan: Plan, policies: Policies, journal: Journal, lock: RunLock) -> LearnerClient:
    return LearnerClient(
        plan.train,
        policies.path(plan.policy, journal.base),
        directory=plan.home / "logs",
        policy=plan.policy,
        recipe=plan.recipe.digest,
        home=plan.home,
        checkpoint=journal.checkpoint if journal.trained else None,
        seed=plan.rollout.seed,
        children=Children(lock.descriptors),
    )


def _runner(plan: Plan, run: str, gateway: str, secret: str, lock: RunLock) -> Runner:
    rollout = plan.rollout
    return Runner(
        run=run,
        agent=rollout.agent,
        reward=rollout.reward,
        folder=plan.folder,
        gateway=gateway,
        secret=secret,
        policy=plan.policy,
        home=plan.home,
        workers=rollout.workers,
        concurrency=rollout.concurrency,
        deadline=rollout.timeout,
        agent_sees=rollout.agent_sees,
        allow=rollout.allow,
        held=lock.descriptors,
    )
