"""The gates of `[deploy.gates]`: a version is compared with the current one before it serves users.

* `eval` compares the score on held-out tasks, and `replay` that of the recipe's judges on stored
  prompts of production. `safety` compares other metrics of these rollouts: evaluations by name, and
  what the gateway records of each call.
* A version passes if no metric is worse than allowed: the lower end of the 95 % interval of the
  paired difference is not below the limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ltrain_collector.store import Store
from ltrain_train.evaluation.comparison import MODE, Difference, Evaluation, Metric, VersionScores
from ltrain_train.evaluation.evaluate import Progress, evaluate
from ltrain_train.evaluation.plan import EvaluatedVersion, EvaluationOptions, plan_evaluation
from ltrain_train.evaluation.replay import replay_recipe
from ltrain_train.policy import Policies
from ltrain_train.processes import RunLock
from ltrain_train.rollout import last_and_next_name
from ltrain_train.runs import Plan, WaveSummary, hold_lock, make_plan
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.traces import Role, sender_roles
from ltrain_transforms.trials import CALL_FIGURES, FAILED_CALLS, OUTPUT_TOKENS, SECONDS, SIGNS

CALLS_SQL = f"""
SELECT rollout, avg(failed), avg(seconds), ifNull(avg(tokens), 0)
FROM (
    SELECT RolloutId AS rollout, {CALL_FIGURES} FROM otel.spans
    WHERE RunId = {{run:String}} AND Mode = {{mode:String}} AND Wave = {{wave:UInt32}}
        AND PolicyName != '' AND %s
)
GROUP BY rollout
"""


@dataclass(frozen=True, slots=True)
class Gate:
    """One comparison of a version with the current one."""

    recipe: Recipe
    """Its tasks, agent and rewards."""
    run: str
    """The beginning of the names of its runs."""
    tasks: str
    """Its tasks in words."""
    allowed: float
    """By how much the version may be worse."""


@dataclass(frozen=True, slots=True)
class CallFigures:
    """The means of the calls of each rollout of a run."""

    run: str
    trust: Sequence[str]
    by_rollout: dict[str, dict[str, float]] = field(default_factory=dict)

    def read(self, version: EvaluatedVersion, store: Store) -> None:
        """Read the calls of the rollouts of a version."""
        senders = sender_roles.trusted_senders(self.trust)
        sql = CALLS_SQL % sender_roles.role_condition(Role.GATEWAY, senders)
        parameters = {"run": self.run, "mode": MODE, "wave": version.wave}
        for rollout, failed, seconds, tokens in store.query(sql, parameters).iter_rows():
            figures = {FAILED_CALLS: failed, SECONDS: seconds, OUTPUT_TOKENS: tokens}
            self.by_rollout[rollout] = figures

    def add(self, summary: WaveSummary) -> WaveSummary:
        """Return a wave whose rollouts have these figures as evaluations, too."""
        ended = [
            each.model_copy(
                update={"evaluations": each.evaluations | self.by_rollout.get(each.rollout, {})}
            )
            for each in summary.ended
        ]
        return WaveSummary(ended)


def examine_locked(recipe: Path, policy: str, store: str | None, version: int) -> tuple[bool, str]:
    """Return the same as `examine`, while no other process works on the policy.

    Raises:
        RunInUse: when another process does.
        LtrainError: when the tasks cannot be solved.
    """
    plan = make_plan(recipe, once=True, model=None, updates=None).for_policy(policy)
    after = "the same command examines the version again"
    with hold_lock(plan.home, f"gate-{policy}", [policy], after) as lock:
        return examine(plan, version, lock, store)


def examine(plan: Plan, version: int, lock: RunLock, store: str | None = None) -> tuple[bool, str]:
    """Return whether a version passes the gates of its recipe, and the sentence on it.

    Both versions solve the tasks behind a gateway of their own, beside the one that serves users.

    Args:
        plan: the plan of one policy.
        lock: that of the policy.
        store: the address of the store with the calls of production; None: LTRAIN_STORE.

    Raises:
        LtrainError: when the tasks cannot be solved, or the store is away.
    """
    gates, recipe, policy = plan.recipe.deploy.gates, plan.recipe, plan.policy
    found: list[tuple[bool, str]] = []
    if gates.eval is not None:
        gate = Gate(recipe, "gate", "held-out tasks", gates.eval)
        found.append(_compare(plan, gate, version, lock))
    if gates.replay is not None:
        with TemporaryDirectory() as folder:
            with Store.open(store, create=False) as opened:
                replayed = replay_recipe(recipe, policy, opened, Path(folder))
            gate = Gate(replayed, "replay", "prompts of production", gates.replay)
            found.append(_compare(plan, gate, version, lock))
    sentences = [sentence for _, sentence in found]
    return all(passes for passes, _ in found), "; ".join(sentences) or "no gate is set"


def _compare(plan: Plan, gate: Gate, version: int, lock: RunLock) -> tuple[bool, str]:
    """Return whether a version passes a gate, and the sentence on it."""
    policy, home = plan.policy, plan.home
    current = Policies(home).current(policy)
    identifiers = [f"{policy}@{number}" for number in (current, version)]
    options = EvaluationOptions(policies=identifiers, run=f"{gate.run}-{policy}", rollout={})
    evaluation_plan = plan_evaluation(gate.recipe, plan.folder, options, home)
    run = last_and_next_name(home / "runs", evaluation_plan.name)[1]
    figures = CallFigures(run, plan.recipe.source.trust)
    progress = Progress(evaluation_plan)
    evaluation = evaluate(evaluation_plan, run, lock, progress, figures.read)
    [difference] = evaluation.differences
    faults = list(_find_worse(evaluation, figures, plan.recipe.deploy.gates.safety))
    sentence = (
        f"on {len(difference.changes)} {gate.tasks} it differs from v{current} by "
        f"{difference.mean or 0.0:+.3f}, at least by {_lower(difference):+.3f}; allowed is "
        f"{-gate.allowed:g}"
    )
    passes = bool(difference.changes) and _lower(difference) >= -gate.allowed and not faults
    return passes, f"{'; '.join([sentence, *faults])} (run {run})"


def _find_worse(
    evaluation: Evaluation, figures: CallFigures, allowed: Mapping[str, float]
) -> Iterator[str]:
    """Yield a sentence on each metric of `safety` that may be worse than allowed."""
    summaries = [figures.add(each.summary) for each in evaluation.versions]
    known = {name for summary in summaries for name in summary.evaluations}
    for name, loss in allowed.items():
        if name not in known:
            yield f"no rollout has {name}"
            continue
        metric = Metric(name, {name: SIGNS.get(name, 1)})
        first, other = (
            VersionScores.from_summary(each.version, summary, metric, planned=each.planned)
            for each, summary in zip(evaluation.versions, summaries, strict=True)
        )
        low = _lower(Difference.between(first, other))
        if low < -loss:
            yield f"{name} may be worse by {-low:.4g}, allowed is {loss:g}"


def _lower(difference: Difference) -> float:
    """Return the lower end of the interval; without spread the mean is its own bound."""
    return difference.interval.low if difference.interval else difference.mean or 0.0
