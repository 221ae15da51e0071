"""The runner of a run's agent."""

from ltrain_train.processes import RunLock
from ltrain_train.rollout import Runner
from ltrain_train.runs.plan import Plan
from ltrain_train.runs.services import Services


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
        python=rollout.python,
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
