"""The gate `eval` of `[deploy.gates]`: a version solves held-out tasks before it serves users."""

from pathlib import Path

from ltrain_train.evaluation.evaluate import Progress, evaluate
from ltrain_train.evaluation.plan import EvaluationOptions, plan_evaluation
from ltrain_train.policy import Policies
from ltrain_train.processes import RunLock
from ltrain_train.rollout import last_and_next_name
from ltrain_train.runs import Plan, hold_lock, make_plan


def examine_locked(recipe: Path, policy: str, version: int) -> tuple[bool, str]:
    """Return the same as `examine`, while no other process works on the policy.

    Raises:
        RunInUse: when another process does.
        LtrainError: when the tasks cannot be solved.
    """
    plan = make_plan(recipe, once=True, model=None, updates=None).for_policy(policy)
    after = "the same command examines the version again"
    with hold_lock(plan.home, f"gate-{policy}", [policy], after) as lock:
        return examine(plan, version, lock)


def examine(plan: Plan, version: int, lock: RunLock) -> tuple[bool, str]:
    """Return whether a version passes the gates of its recipe, and the sentence on it.

    Both versions solve the tasks behind a gateway of their own, beside the one that serves users.

    Args:
        plan: the plan of one policy.
        lock: that of the policy.

    Raises:
        LtrainError: when the tasks cannot be solved.
    """
    allowed = plan.recipe.deploy.gates.eval
    if allowed is None:
        return True, "no gate is set"
    policy, home = plan.policy, plan.home
    current = Policies(home).current(policy)
    identifiers = [f"{policy}@{number}" for number in (current, version)]
    options = EvaluationOptions(policies=identifiers, run=f"gate-{policy}", rollout={})
    evaluation_plan = plan_evaluation(plan.recipe, plan.folder, options, home)
    run = last_and_next_name(home / "runs", evaluation_plan.name)[1]
    evaluation = evaluate(evaluation_plan, run, lock, Progress(evaluation_plan))
    [difference] = evaluation.differences
    mean, interval = difference.mean or 0.0, difference.interval
    low = mean if interval is None else interval.low
    sentence = (
        f"on {len(difference.changes)} held-out tasks it differs from v{current} by {mean:+.3f}, "
        f"at least by {low:+.3f}; allowed is {-allowed:g} (run {run})"
    )
    return bool(difference.changes) and low >= -allowed, sentence
