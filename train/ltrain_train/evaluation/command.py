"""`ltrain eval`: evaluates versions, prints the result, and returns whether it is good enough."""

import sys

from rich.console import Console

from ltrain_instrument import settings
from ltrain_train.evaluation.comparison import Evaluation, Threshold
from ltrain_train.evaluation.evaluate import Progress, evaluate
from ltrain_train.evaluation.plan import EvaluationOptions, EvaluationPlan, make_plan
from ltrain_train.evaluation.report import as_json as report_as_json
from ltrain_train.evaluation.report import evaluation_lines, evaluation_table, evaluation_title
from ltrain_train.rollout import last_and_next_name, rollout_logs
from ltrain_train.runs import hold_lock


def run_evaluation(
    options: EvaluationOptions, threshold: Threshold | None, *, as_json: bool
) -> bool:
    """Evaluate versions, print the result, and return whether it reaches the threshold.

    Raises:
        RunInUse: when another process works on a policy or on a run of this name.
        LtrainError: when something cannot be evaluated.
    """
    plan = make_plan(options, settings.HOME.read())
    evaluation = _evaluate_locked(plan)
    faults = evaluation.faults(threshold)
    if as_json:
        print(report_as_json(evaluation, faults))
    else:
        _print_report(evaluation, plan)
    for fault in faults:
        print(f"ltrain: {fault}", file=sys.stderr)
    return not faults


def _evaluate_locked(plan: EvaluationPlan) -> Evaluation:
    """Evaluate while no other process trains, replaces or prunes the policies."""
    policies = [each.policy for each in plan.versions]
    progress, run = Progress(plan), plan.name
    try:
        with hold_lock(plan.home, plan.name, policies, "the next evaluation begins anew") as lock:
            run = last_and_next_name(plan.home / "runs", plan.name)[1]
            return evaluate(plan, run, lock, progress)
    except KeyboardInterrupt:
        stored = f" They are run '{run}' in the store." if progress.ended else ""
        print(f"ltrain: stopped. {progress.describe()}{stored}", file=sys.stderr)
        raise


def _print_report(evaluation: Evaluation, plan: EvaluationPlan) -> None:
    console = Console()
    console.print(evaluation_title(evaluation), markup=False, highlight=False, soft_wrap=True)
    console.print(evaluation_table(evaluation), highlight=False)
    for line in evaluation_lines(evaluation, rollout_logs(plan.home)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
