"""Annotations: the last evaluation of each target, name and source, and advantages of calls.

An annotation has the same id each time it is made, so that a platform keeps it once, with the value
that was pushed last.
"""

from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ltrain_collector.store import Store
from ltrain_instrument.feedback import WITHDRAWN
from ltrain_transforms.datasets import Dataset

ADVANTAGE = "ltrain.advantage"
"""The name of the annotations with advantages."""

PERSON, RECIPE = "person", "recipe"
"""Sources: feedback by hand, and what a recipe computed."""

NO_TRACE = "no_trace"
"""The reason of an evaluation of no session, without another span of its trace or rollout in the
store."""

EVALUATIONS = """
WITH
    spans AS (SELECT * FROM otel.spans WHERE SpanName != 'gen_ai.evaluation.result'),
    roots AS (
        SELECT RolloutId AS rollout, argMax(TraceId, Timestamp) AS root FROM spans
        WHERE RolloutId != '' AND ParentSpanId = '' GROUP BY rollout
    ),
    sessions AS (
        SELECT TraceId AS trace, any(toString(SessionId)) AS session FROM otel.spans
        WHERE SpanName = 'gen_ai.evaluation.result' GROUP BY trace
    )
SELECT
    multiIf(trace IN (SELECT TraceId FROM spans), trace, rollout != '', root, '') AS target,
    if(scope = 'call', parent, '') AS call,
    if(target = '', session, '') AS judged_session,
    name, source,
    argMax(tuple(value, label, explanation), judged) AS last
FROM otel.evaluations LEFT JOIN roots USING rollout LEFT JOIN sessions USING trace
WHERE {run:String} = '' OR run = {run:String}
GROUP BY target, judged_session, call, name, source
ORDER BY target, judged_session, call, name, source
"""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A judgement of a session, of a trace or of one of its spans."""

    trace: str
    """'' if it judges a session."""
    span: str
    """'' if it judges the whole trace."""
    name: str
    source: str
    """Who judged, as in the view `otel.evaluations`; `recipe` for advantages."""
    value: float | None
    label: str = ""
    explanation: str = ""
    session: str = ""

    @property
    def id(self) -> str:
        """The same for each annotation of one target, name and source."""
        target = f"session {self.session}" if self.session else self.trace
        parts = ("ltrain", target, self.span, self.name, self.source)
        return sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def read_evaluations(store: Store, run: str) -> tuple[list[Annotation], Counter[str]]:
    """Return the annotations of stored evaluations, and how many were left out by reason.

    Args:
        run: only those of this run; '' is every run.
    """
    annotations, left_out = list[Annotation](), Counter[str]()
    for row in store.query(EVALUATIONS, {"run": run}).iter_rows(named=True):
        value, label, explanation = _values(row["last"])
        session = row["judged_session"]
        if not row["target"] and not session:
            left_out[NO_TRACE] += 1
        elif label == WITHDRAWN and value is None:
            left_out[WITHDRAWN] += 1
        else:
            call = "" if session else row["call"]
            target = (row["target"], call, row["name"], row["source"])
            annotations.append(Annotation(*target, value, label, explanation, session))
    return annotations, left_out


def _values(last: Any) -> tuple[float | None, str, str]:
    value, label, explanation = last.values() if isinstance(last, dict) else last
    return value, label or "", explanation or ""


def read_advantages(dataset: Dataset) -> list[Annotation]:
    """Return the advantages of the calls of a dataset."""
    key = ["execution_id", "call_id"]
    found = list[Annotation]()
    for batch in dataset.batches:
        transitions = batch.table("transitions", (*key, "advantage")).drop_nulls("advantage")
        rows = transitions.join(batch.table("calls", (*key, "trace_id")), key).sort(key)
        columns = rows.select("trace_id", "call_id", "advantage").iter_rows()
        found += [
            Annotation(trace, call, ADVANTAGE, RECIPE, value) for trace, call, value in columns
        ]
    return found
