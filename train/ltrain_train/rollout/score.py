"""`ltrain score`: judges the stored rollouts of a run again, with any reward or a judge.

The runner recorded the task and the result of each rollout. The new values are written as the
runner writes them, below the rollout's dispatch span. Of several evaluations of one name the last
one counts, so a new value takes the place of the old one, and a repeated command changes nothing.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from opentelemetry.trace import SpanContext, TraceFlags

from ltrain_instrument import attributes, settings
from ltrain_instrument.errors import UnknownName
from ltrain_instrument.identity import Identity
from ltrain_train.errors import NothingToScore
from ltrain_train.rollout.program import AgentProgram
from ltrain_train.rollout.rewards import UNNAMED, BadUpstream, RewardFailed
from ltrain_train.rollout.runner_spans import AttemptSpans, SpanWriter
from ltrain_train.rollout.scorer import Scorer
from ltrain_train.rollout.tasks import Task
from ltrain_train.store import open_service_provider, require_own_store
from ltrain_train.workers import Outcome

if TYPE_CHECKING:  # its import takes seconds, which a runner without a store saves
    from ltrain_collector.store import Store
    from ltrain_transforms.recipe import Judge

ARRIVAL = 10.0
"""Maximum seconds until the collector has written the new values into the store."""

ARRIVED_SQL = f"""
SELECT count() AS arrived FROM otel.spans
WHERE RunId = {{run:String}} AND SpanName = '{attributes.SPAN_EVALUATION}'
    AND toUnixTimestamp64Nano(Timestamp) >= {{began:Int64}}
"""

LAST_ATTEMPTS_SQL = f"""
SELECT toUnixTimestamp64Nano(dispatch.Timestamp) AS began, dispatch.TraceId AS trace,
    dispatch.SpanId AS root, toJSONString(closing.SpanAttributes) AS closing,
    toJSONString(dispatch.SpanAttributes) AS dispatch
FROM (
    SELECT RolloutId, argMax(SpanId, (toUInt32OrZero(Attempt), Timestamp)) AS span
    FROM otel.spans
    WHERE RunId = {{run:String}} AND SpanName = '{attributes.SPAN_DISPATCH}' AND %s
    GROUP BY RolloutId
) AS last
JOIN (
    SELECT TraceId, SpanId, Timestamp, SpanAttributes FROM otel.spans
    WHERE RunId = {{run:String}} AND SpanName = '{attributes.SPAN_DISPATCH}' AND %s
) AS dispatch ON dispatch.SpanId = last.span
LEFT JOIN (
    SELECT TraceId, ParentSpanId, SpanAttributes FROM otel.spans
    WHERE RunId = {{run:String}} AND SpanName = '{attributes.SPAN_ROLLOUT}' AND %s
) AS closing ON closing.TraceId = dispatch.TraceId AND closing.ParentSpanId = dispatch.SpanId
ORDER BY dispatch.SpanAttributes['{attributes.TASK_ID}'], last.RolloutId
"""


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """The last attempt at a rollout, as the runner recorded it."""

    spans: AttemptSpans
    task: Task | None
    """None if the rollout cannot be judged."""
    result: Any
    fault: str
    """Why the rollout cannot be judged; '' if it can."""


@dataclass(slots=True)
class ScoreReport:
    """The result of `ltrain score`: every rollout is scored, skipped or failed."""

    run: str
    values: dict[str, list[float]] = field(default_factory=dict)
    """The new values by name."""
    scored: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of rollouts by the reason for which they were not judged."""
    failed: list[str] = field(default_factory=list)
    """The errors of the reward function."""
    unseen: str = ""
    """Why new values are not in the store; '' if all are."""

    def as_text(self) -> str:
        """Return the report as a few lines of text."""
        skipped, failed = self.skipped.total(), len(self.failed)
        total = self.scored + skipped + failed
        lines = [
            f"run {self.run}: {self.scored} of {total} rollouts scored, {skipped} skipped, "
            f"{failed} failed"
        ]
        lines += [f"mean {name}: {mean:.3f}" for name, mean in self.means().items()]
        lines += [f"skipped {count}: {reason}" for reason, count in self.skipped.most_common()]
        lines += [f"failed {failed}, for example: {error}" for error in self.failed[:1]]
        lines += [self.unseen] * bool(self.unseen)
        return "\n".join(lines)

    def as_json(self) -> str:
        """Return the report as JSON."""
        fields = {"run": self.run, "scored": self.scored, "means": self.means()}
        faults = {"skipped": dict(self.skipped), "failed": self.failed, "unseen": self.unseen}
        return json.dumps(fields | faults)

    def means(self) -> dict[str, float]:
        """Return the mean of the new values by name."""
        return {name: sum(each) / len(each) for name, each in sorted(self.values.items())}


def score_stored_run(
    run: str,
    program: AgentProgram,
    *,
    store: str | None = None,
    name: str = UNNAMED,
    trust: Sequence[str] = (),
) -> ScoreReport:
    """Judge the rollouts of a run in the store with the reward and the judges of a program.

    Args:
        program: its agent does not run.
        name: the name that takes the place of `reward`.

    Raises:
        UnknownName: when `trust` has no sender's name.
        NothingToScore: when the store has no rollout of the run.
        LtrainError: when the store or the function cannot be used.
    """
    from ltrain_collector.store import Store

    _check_senders(trust)
    home = settings.HOME.read()
    scorer = Scorer(program)
    with Store.open(store, create=False) as opened:
        rollouts = read_rollouts(opened, run, trust)
        if not rollouts:
            raise NothingToScore(
                f"{opened.name} has no rollout of a run '{run}'. "
                '`ltrain sql "SELECT DISTINCT run FROM otel.rollouts"` lists the runs.'
            )
    require_own_store(home)
    provider, began = open_service_provider("ltrain-score", home), time.time_ns()
    try:
        with scorer:
            report = score_rollouts(run, rollouts, scorer, SpanWriter(provider), name)
    finally:
        provider.shutdown()
    with Store.open(store, create=False) as opened:
        report.unseen = _find_unseen(opened, report, began)
    return report


def find_judge(recipe: Path, name: str) -> "Judge":
    """Return the judge of a recipe whose evaluation has this name.

    Raises:
        BadRecipe: when the recipe cannot be read.
        UnknownName: when it has no such judge.
        BadUpstream: when the judge's model has no server.
    """
    from ltrain_transforms.recipe import Recipe

    judges = Recipe.load(recipe).judges
    if name not in judges:
        raise UnknownName("judge", name, judges)
    if judges[name].url is None:
        raise BadUpstream(
            f"The judge '{name}' of {recipe} has no server. Add a [[serve.route]] with model = "
            f'"{judges[name].model}", or set url in its params.'
        )
    return judges[name]


def _check_senders(trust: Sequence[str]) -> None:
    """Check that a recipe may trust these senders."""
    from ltrain_transforms.recipe import TrustedSender

    known = get_args(TrustedSender)
    for name in trust:
        if name not in known:
            raise UnknownName("sender", name, filter(None, known))


def _find_unseen(store: "Store", report: ScoreReport, began: int) -> str:
    """Return a sentence if values written since `began` (Unix ns) do not arrive in the store."""
    written, arrived, end = sum(map(len, report.values.values())), 0, time.monotonic() + ARRIVAL
    while arrived < written and time.monotonic() < end:
        arrived = store.query(ARRIVED_SQL, {"run": report.run, "began": began})["arrived"][0]
        time.sleep(0.1)
    if arrived >= written:
        return ""
    return (
        f"{written - arrived} of {written} new values are not in {store.name}. They were sent to "
        f"{settings.OTLP_ENDPOINT.read()}: if that is a collector of another store, set "
        "OTEL_EXPORTER_OTLP_ENDPOINT to this store's; if none runs there, they wait on disk for it."
    )


def score_rollouts(
    run: str, rollouts: Sequence[StoredRollout], scorer: Scorer, writer: SpanWriter, name: str
) -> ScoreReport:
    """Judge the rollouts of `run` and write the values; `name` takes the place of `reward`."""
    report = ScoreReport(run)
    report.skipped.update(rollout.fault for rollout in rollouts if rollout.fault)
    judged = [(each.spans, each.task, each.result) for each in rollouts if each.task is not None]
    with ThreadPoolExecutor(scorer.concurrency, thread_name_prefix="score") as pool:
        futures = [
            pool.submit(scorer.score, task, result, partial(writer.start_call, spans))
            for spans, task, result in judged
        ]
        for (spans, _, _), future in zip(judged, futures, strict=True):
            try:
                scores = future.result()
            except RewardFailed as error:
                report.failed.append(str(error))
                continue
            report.scored += 1
            for own_name, score in scores.items():
                named = name if own_name == UNNAMED else own_name
                writer.write_evaluation(spans, named, score.value, score.evidence)
                report.values.setdefault(named, []).append(score.value)
    return report


def read_rollouts(store: "Store", run: str, trust: Sequence[str] = ()) -> list[StoredRollout]:
    """Return the last attempt at each rollout of a run, by task."""
    from ltrain_transforms.traces import Role, sender_roles

    senders = sender_roles.trusted_senders(trust)
    by_runner = sender_roles.role_condition(Role.RUNNER, senders)
    rows = store.query(LAST_ATTEMPTS_SQL % ((by_runner,) * 3), {"run": run})
    return [_read_rollout(row) for row in rows.iter_rows(named=True)]


def _read_rollout(row: dict[str, Any]) -> StoredRollout:
    closing, dispatch = json.loads(row["closing"]), json.loads(row["dispatch"])
    identity = Identity.from_attributes(dispatch)
    root = SpanContext(
        int(row["trace"], 16), int(row["root"], 16), False, TraceFlags(TraceFlags.SAMPLED)
    )
    spans = AttemptSpans(identity, root, row["began"])
    fault = _find_fault(dispatch, closing)
    if fault:
        return StoredRollout(spans, None, None, fault)
    task = Task.model_validate(
        {
            **json.loads(closing[attributes.TASK_FIELDS]),
            "id": identity.task,
            "input": json.loads(dispatch[attributes.TASK_INPUT]),
            "domain": identity.domain or "",
        }
    )
    return StoredRollout(spans, task, json.loads(closing[attributes.RESULT]), "")


def _find_fault(dispatch: dict[str, str], closing: dict[str, str]) -> str:
    """Return why a rollout cannot be judged; '' if it can."""
    outcome = closing.get(attributes.OUTCOME)
    if outcome is None:
        return "its last attempt has not ended"
    if outcome != Outcome.OK:
        return f"the outcome is {outcome}: only results of outcome ok are judged"
    recorded = dispatch | closing
    names = (attributes.TASK_INPUT, attributes.TASK_FIELDS, attributes.RESULT)
    missing = [name for name in names if name not in recorded]
    if missing:
        return (
            f"its spans lack {' and '.join(missing)}: content was off, or the version of ltrain "
            "that recorded it did not write them"
        )
    if attributes.REDACTED in recorded:
        return "task or result were redacted before they were recorded"
    shortened = dispatch.get(attributes.CUT, "") + closing.get(attributes.CUT, "")
    if any(name in shortened for name in names):
        return "task or result were shortened before they were recorded (LTRAIN_SPAN_LIMIT)"
    return ""
