"""`ltrain deploy decide`: promotes a candidate or takes it back, by `[deploy]` of the recipe.

* The store is only read. While it is away nothing is decided, and serving goes on.
* A verdict becomes a stage by the same step as that of a person, with its evidence as the reason.
"""

import logging
import time
from functools import partial
from pathlib import Path

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.errors import LtrainError
from ltrain_train.policy import Deployments, Policies
from ltrain_train.publishing.deploy_commands import move, require_candidate
from ltrain_train.publishing.publish import find_gateway
from ltrain_train.runs import retry_load, store_is_away
from ltrain_transforms.deployment_file import Deployment, Stage
from ltrain_transforms.recipe import Deploy, Recipe
from ltrain_transforms.trials import (
    FAILED_CALLS,
    SECONDS,
    Bounds,
    Decision,
    Guard,
    Metric,
    Verdict,
    decide,
    read_metrics,
)

AUTHOR = "ltrain deploy decide"
STAGES = {
    Decision.PROMOTE: Stage.CURRENT,
    Decision.TAKE_BACK: Stage.RETIRED,
    Decision.UNDECIDED: Stage.RETIRED,
}

_logger = logging.getLogger("ltrain.deploy")


def decide_candidate(name: str, recipe: Path, store: str | None, *, watch: bool) -> None:
    """Judge the candidate of a policy once, or until it is promoted or taken back.

    Args:
        recipe: the file with `[deploy]`.
        store: the address of the store; None: LTRAIN_STORE.

    Raises:
        BadDeployment: when the policy has no candidate.
    """
    options = Recipe.load(recipe).deploy
    policies = Policies(settings.HOME.read())
    candidate = require_candidate(policies, name)
    while True:
        verdict = _read_verdict(candidate, options, store, waits=watch)
        if verdict is not None and _act(policies, name, candidate, options, verdict):
            return
        if not watch:
            return
        time.sleep(options.poll)
        latest = Deployments(policies, name).candidate()
        if latest is None or latest.experiment != candidate.experiment:
            print(f"The trial of v{candidate.version} has ended: `ltrain deploy status {name}`.")
            return


def _read_verdict(
    candidate: Deployment, options: Deploy, store: str | None, *, waits: bool
) -> Verdict | None:
    """Return the verdict; None while the store is away, if the caller waits for it."""
    settled = time.time_ns() - int(options.reward_window * 1e9)
    try:
        with Store.open(store, create=False) as opened:
            metrics = read_metrics(opened, candidate.experiment, settled)
    except LtrainError as error:
        if not (waits and store_is_away(error)):
            raise
        _logger.warning("ltrain: nothing is decided while the store is away: %s", error)
        return None
    return judge(metrics, options)


def judge(metrics: list[Metric], options: Deploy) -> Verdict:
    """Return the verdict on the metrics of a trial."""
    signs = {FAILED_CALLS: -1, SECONDS: -1}
    guards = {
        name: Guard(loss, signs.get(name, 1))
        for name, loss in options.guards.items()
        if name != options.goal
    }
    bounds = Bounds(
        goal=options.goal,
        sign=signs.get(options.goal, 1),
        min_gain=options.min_gain,
        max_loss=options.max_loss,
        guards=guards,
        alpha=options.alpha,
        budget=options.budget,
    )
    arrived = {
        each.name: (each.candidate, each.current)
        for each in metrics
        if each.candidate.values and each.current.values
    }
    units = max((each.candidate.units for each in metrics), default=0)
    return decide(arrived, bounds, int(units))


def _act(
    policies: Policies, name: str, candidate: Deployment, options: Deploy, verdict: Verdict
) -> bool:
    """Carry out a verdict and print it; return whether nothing is left to decide."""
    version = f"v{candidate.version} of policy '{name}'"
    if verdict.decision is Decision.GO_ON:
        print(f"{version} goes on: {verdict.reason}.", flush=True)
        return False
    if verdict.decision is Decision.PROMOTE and options.approve == "manual":
        print(f"{version} may be promoted: {verdict.reason}. `ltrain deploy promote {name}`")
        return True
    stage = STAGES[verdict.decision]
    with find_gateway(policies.directory.parent, name) as gateway:
        step = partial(move, policies, gateway, name, candidate.version, stage)
        retry_load(lambda: step(by=AUTHOR, reason=verdict.reason))
    print(f"{version} is {stage}: {verdict.reason}.")
    return True
