"""Feedback by hand: written under a person's name, and listed.

The spans have a scope of their own, which makes a trusted sender's evaluation one of a person. Each
write is read back through the views, so that nothing is reported as saved that readers do not see.
"""

import getpass
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ltrain_collector import schema
from ltrain_collector.admin import BY_PERSON, EVALUATION_NAME
from ltrain_collector.errors import ACCESS_DENIED, NotSaved, QueryFailed
from ltrain_collector.feedback.record import Feedback, to_request
from ltrain_collector.signals import TRACES, Rows
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.feedback import WITHDRAWN, Target

_WRITING = threading.Lock()
"""Held while feedback is compared with the latest and written: a repeated click is stored once."""

_COLUMNS: dict[str, str] = {"rollout": "RolloutId", "trace": "TraceId", "session": "SessionId"}

_GIVEN = f"""
SELECT SpanId AS span, toUnixTimestamp64Nano(Timestamp) AS time,
    {EVALUATION_NAME} AS name,
    toFloat64OrNull(EvaluationValue) AS value,
    SpanAttributes['{attributes.EVALUATION_EXPLANATION}'] AS note,
    EvaluationLabel AS label,
    SpanAttributes['{attributes.USER_NAME}'] AS person,
    if(EvaluationScope = 'call', ParentSpanId, '') AS call
FROM otel.spans
WHERE {BY_PERSON} AND (
    {{column}} = {{{{id:String}}}}
    OR RolloutId = ''
        AND TraceId IN (SELECT TraceId FROM otel.spans WHERE {{column}} = {{{{id:String}}}})
)
ORDER BY time DESC, span
LIMIT 1 BY span
"""


@dataclass(frozen=True, slots=True)
class StoredFeedback:
    """One feedback by hand that is stored."""

    span: str
    """The id of its evaluation span."""
    time: datetime
    name: str
    value: float | None
    """None for a note and a withdrawal."""
    note: str
    person: str
    call: str
    """The id of a span of the judged call; '' for the whole execution."""
    withdrawn: bool
    """Whether it withdraws those before it."""
    counts: bool
    """Whether a recipe may use it: no later value or withdrawal takes its place."""

    @property
    def place(self) -> tuple[str, str]:
        """The judged call and the name of the judgement: later feedback with both replaces it."""
        return self.call, self.name

    def repeats(self, feedback: Feedback) -> bool:
        """Return whether `feedback` is this one, sent again."""
        own = (self.span, self.value, self.note, self.withdrawn)
        content = (feedback.value, feedback.comment or "", feedback.withdrawn)
        return feedback.id is not None and own == (feedback.span_id.hex(), *content)


def local_person() -> str:
    """Return the name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user's id has no name, as in some containers
        return "local"


def save_feedback(store: Store, feedback: Feedback, person: str) -> None:
    """Store feedback by hand; feedback that repeats the latest, also its `id`, is stored once.

    Raises:
        NotSaved: the store refuses it, or its views do not show it.
    """
    with _WRITING, _refusals(store):
        place = (feedback.call or "", feedback.name)
        entries = [one for one in list_feedback(store, feedback.target) if one.place == place]
        if entries and entries[0].repeats(feedback):
            return
        if feedback.span_id.hex() in {one.span for one in entries}:
            feedback = feedback.model_copy(update={"id": None})  # the form was sent again, changed
        request = to_request([feedback], time.time_ns(), person=person)
        span = request.resource_spans[0].scope_spans[0].spans[0]
        rows = TRACES.encode_local(request)
        _insert(store, rows)
        found = store.query(
            "SELECT 1 AS one FROM otel.spans WHERE TraceId = {trace:String} "
            f"AND SpanId = {{span:String}} AND {BY_PERSON} LIMIT 1",
            {"trace": span.trace_id.hex(), "span": span.span_id.hex()},
        )
        if found.is_empty():
            raise NotSaved(store.name, "its views read another table than the one ltrain writes")


def list_feedback(store: Store, target: Target) -> list[StoredFeedback]:
    """Return the feedback by hand on an execution and its calls, the latest first."""
    sql = _GIVEN.format(column=_COLUMNS[target.kind])
    entries, placed = list[StoredFeedback](), set[tuple[str, str]]()
    for row in store.query(sql, {"id": target.id}).to_dicts():
        withdrawn = row["value"] is None and row["label"] == WITHDRAWN
        key, has_place = (row["call"], row["name"]), withdrawn or row["value"] is not None
        counts = row["value"] is not None and key not in placed
        placed |= {key} if has_place else set()
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row["time"] // 1000)
        fields = {name: row[name] for name in ("span", "name", "value", "note", "person", "call")}
        entries.append(StoredFeedback(time=moment, withdrawn=withdrawn, counts=counts, **fields))
    return entries


@contextmanager
def _refusals(store: Store) -> Iterator[None]:
    try:
        yield
    except QueryFailed as error:
        raise NotSaved(store.name, str(error)) from error


def _insert(store: Store, rows: Rows) -> None:
    """Insert rows; with the owner's key if the key that the store was opened with only reads."""
    try:
        _insert_blocks(store, rows)
    except QueryFailed as error:
        owners = store.open_as_owner() if error.code == ACCESS_DENIED else None
        if owners is None:
            raise
        with owners:
            _insert_blocks(owners, rows)


def _insert_blocks(store: Store, rows: Rows) -> None:
    for table, block in rows.blocks.items():
        store.insert_rows(schema.insert_target(table), block.payload)
