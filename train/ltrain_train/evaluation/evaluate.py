"""Runs the tasks with each version, behind a gateway that it starts and stops.

* The gateway is the evaluation's own, on a free port: one that runs already keeps its version.
* The gateway serves each version without making it current, so that `current` never changes.
* The store is shared; the rollouts are a run of their own, in mode `val`, one wave a version.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import BadRun, RolloutsFailed, WrongVersion
from ltrain_train.evaluation.comparison import (
    MODE,
    Difference,
    Evaluation,
    Metric,
    VersionScores,
    choose_metric,
)
from ltrain_train.evaluation.plan import EvaluatedVersion, EvaluationPlan
from ltrain_train.processes import RunLock, free_port
from ltrain_train.rollout import describe_failures, end_of, import_program, rollout_logs
from ltrain_train.runs import (
    RunEnvironment,
    Services,
    WaveSummary,
    responds,
    retry_load,
    retry_store,
    settle,
)
from ltrain_train.store import require_own_store
from ltrain_train.workers import RolloutResult
from ltrain_transforms.traces import Role, sender_roles

ANSWERED_SQL = """
SELECT DISTINCT concat(toString(PolicyName), '@', toString(PolicyVersion)) AS version
FROM otel.spans
WHERE RunId = {run:String} AND Mode = {mode:String} AND Wave = {wave:UInt32} AND PolicyName != ''
    AND %s
"""


@dataclass(slots=True)
class Progress:
    """The number of ended rollouts by version; a line on standard error for each version."""

    plan: EvaluationPlan
    ended: dict[EvaluatedVersion, int] = field(default_factory=dict)
    """By version, for those that have begun."""

    @contextmanager
    def measure(self, version: EvaluatedVersion) -> Iterator[Callable[[RolloutResult], None]]:
        """Yield a function that counts a rollout of `version`; then print the version's line."""
        began, self.ended[version] = time.monotonic(), 0

        def count(result: RolloutResult) -> None:
            self.ended[version] += 1
            if sys.stderr.isatty():
                _print(self._count(version), end="\r")

        yield count
        _print(f"{self._count(version)} in {time.monotonic() - began:.0f} s")

    def describe(self) -> str:
        """Return what was done, as a sentence."""
        counts = ", ".join(map(self._count, self.ended))
        return f"Evaluated so far: {counts}." if counts else "No rollout has begun."

    def _count(self, version: EvaluatedVersion) -> str:
        return f"{version}: {self.ended[version]} of {self.plan.planned} rollouts"


def evaluate(
    plan: EvaluationPlan,
    run: str,
    lock: RunLock,
    progress: Progress,
    on_wave: Callable[[EvaluatedVersion, Store], None] = lambda version, store: None,
) -> Evaluation:
    """Run the tasks with each version and return the scores.

    Args:
        lock: the lock of the run and the policies; guards of started processes hold it too.
        progress: is told each rollout that ends.
        on_wave: called with each version whose rollouts have ended, and the store of their spans.
    """
    require_own_store(plan.home)
    _require_own_upstream(plan)
    import_program(plan.program, plan.home, plan.tasks)
    summaries: dict[int, WaveSummary] = {}
    with ExitStack() as serving, lock.working():
        for policy in dict.fromkeys(each.policy for each in plan.versions):
            serving.close()  # memory may hold the model of one policy only
            wave_runner = serving.enter_context(_serving(plan, policy, run, lock))
            for version in (each for each in plan.versions if each.policy == policy):
                summaries[version.wave] = wave_runner.run(version, progress)
                on_wave(version, wave_runner.environment.store)
                _choose_metric(plan, summaries.values())  # an error before further waves run
    _require_scores(plan, summaries)
    metric = _choose_metric(plan, summaries.values())
    return _compare(plan, run, metric, [summaries[each.wave] for each in plan.versions])


def _compare(
    plan: EvaluationPlan, run: str, metric: Metric, summaries: Sequence[WaveSummary]
) -> Evaluation:
    first, *others = [
        VersionScores.from_summary(
            str(version), summary, metric, wave=version.wave, planned=plan.planned, seed=plan.seed
        )
        for version, summary in zip(plan.versions, summaries, strict=True)
    ]
    return Evaluation(
        run=run,
        metric=metric.name,
        tasks=len(plan.tasks),
        samples=plan.samples,
        temperature=plan.temperature,
        versions=[first, *others],
        differences=[Difference.between(first, other, plan.seed) for other in others],
    )


def _choose_metric(plan: EvaluationPlan, summaries: Iterable[WaveSummary]) -> Metric:
    names = {name for summary in summaries for name in summary.evaluations}
    return choose_metric(names, plan.metric, plan.rewards)


def _require_scores(plan: EvaluationPlan, summaries: dict[int, WaveSummary]) -> None:
    """Check that some rollout was ok, and that each version has a rollout that counts."""
    for version in plan.versions:
        if not summaries[version.wave].counted:
            why = _describe_failures(plan, summaries[version.wave])
            raise RolloutsFailed(f"No rollout of {version} has a score. {why}")
    if not any(summary.outcomes.get("ok") for summary in summaries.values()):
        why = _describe_failures(plan, summaries[0])
        raise RolloutsFailed(f"No rollout of any version was ok. {why}")


def _describe_failures(plan: EvaluationPlan, summary: WaveSummary) -> str:
    return describe_failures(summary.failures, plan.planned, rollout_logs(plan.home))


@dataclass(frozen=True, slots=True)
class _WaveRunner:
    """Runs the wave of one version."""

    plan: EvaluationPlan
    environment: RunEnvironment

    def run(self, version: EvaluatedVersion, progress: Progress) -> WaveSummary:
        plan, environment = self.plan, self.environment
        gateway, store = environment.gateway, environment.store
        retry_load(lambda: gateway.load(version.policy, version.version, current=False))
        with progress.measure(version) as count:
            results = environment.runner.run(
                MODE,
                version.wave,
                plan.tasks,
                plan.samples,
                sampling={"temperature": plan.temperature},
                on_result=count,
            )
        ended = [end_of(each) for each in results]
        missing = settle(store, ended, plan.span_timeout, plan.trust)
        if missing:
            _print(f"the store lacks spans of {quantity(len(missing), 'rollout')} of {version}")
        self._require_version(version)
        return WaveSummary(ended)

    def _require_version(self, version: EvaluatedVersion) -> None:
        """Check that the version alone answered the calls of its wave."""
        senders = sender_roles.trusted_senders(self.plan.trust)
        sql = ANSWERED_SQL % sender_roles.role_condition(Role.GATEWAY, senders)
        parameters = {"run": self.environment.run, "mode": MODE, "wave": version.wave}
        store = self.environment.store
        answered = retry_store(lambda: store.query(sql, parameters))["version"].to_list()
        if others := sorted(set(answered) - {str(version)}):
            raise WrongVersion(
                f"{', '.join(others)} answered calls of the evaluation of {version}, because the "
                "gateway died and was started again. Its log is "
                f"{self.plan.home / 'logs' / 'gateway.log'}. Run the same command again."
            )


@contextmanager
def _serving(plan: EvaluationPlan, policy: str, run: str, lock: RunLock) -> Iterator[_WaveRunner]:
    """Start a gateway for the policy, the store if it does not run, and the agent's processes."""
    _print(f"starting a gateway for policy '{policy}'; its logs are in {plan.home / 'logs'}")
    services = Services(
        plan.home,
        policies=(policy,),
        serve=plan.serve,
        gateway_url=f"http://127.0.0.1:{free_port()}",
        keep_open=lock.descriptors,
    )
    with RunEnvironment(run, plan.program, services) as environment:
        services.start()
        environment.open()
        yield _WaveRunner(plan, environment)


def _require_own_upstream(plan: EvaluationPlan) -> None:
    """Check that no gateway that runs uses the policy server of [serve] upstream."""
    url = settings.GATEWAY.read()
    if plan.upstream and responds(f"{url}/health", (200, 503)):
        raise BadRun(
            f"serve.upstream = '{plan.upstream}', and the gateway at {url} may use the same policy "
            "server: the evaluation would load other weights into it. Stop that gateway, or unset "
            "serve.upstream to evaluate with a policy server of its own."
        )


def _print(sentence: str, end: str = "\n") -> None:
    print(f"ltrain: {sentence}", end=end, file=sys.stderr, flush=True)
