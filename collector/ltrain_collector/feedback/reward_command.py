"""`ltrain reward`: record feedback by hand for an execution that is in the store."""

import json
from collections.abc import Iterator

from pydantic import ValidationError

from ltrain_collector.errors import BadFeedback, NoTarget
from ltrain_collector.feedback.person import local_person, save_feedback
from ltrain_collector.feedback.record import Feedback
from ltrain_collector.store import Store
from ltrain_instrument.feedback import TARGET_KINDS, Target, TargetKind

MAX_CANDIDATES = 5
"""Ids that an ambiguous beginning lists."""

_COLUMNS: dict[TargetKind, str] = {
    "rollout": "RolloutId",
    "trace": "TraceId",
    "session": "SessionId",
}


def record_reward(
    identifier: str,
    value: float | None,
    name: str,
    comment: str | None,
    dsn: str | None,
    as_json: bool,
    *,
    withdraw: bool = False,
) -> None:
    """Store feedback by hand for the execution with this id, and print it.

    Args:
        identifier: `KIND:ID`, or the beginning of an id of a rollout, a trace or a session.
        value: the reward; None for a comment alone.
        withdraw: withdraw all earlier feedback of this name.

    Raises:
        NoTarget: no execution, or several, have an id that begins so.
        BadFeedback: the value is not finite, the name is empty, or there is nothing to store.
        NotSaved: the store takes no feedback from this process.
    """
    with Store.open(dsn, create=False) as store:
        target = find_target(store, identifier)
        feedback = _make_feedback(target, value, name, comment, withdraw)
        save_feedback(store, feedback, local_person())
    if as_json:
        record = {"kind": target.kind, "id": target.id, "name": name, "value": value}
        print(json.dumps(record | ({"withdrawn": True} if withdraw else {})))
        return
    if withdraw:
        print(f"{name} of the {target.kind} {target.id} is withdrawn.")
        return
    content = "the note" if value is None else f"{value:g}"
    print(f"{name} = {content} is recorded for the {target.kind} {target.id}.")
    print(
        f'A recipe reads it with [[reward]] evaluation = "{name}", from = "person"; `ltrain rules` '
        "shows what it contributes."
    )


def _make_feedback(
    target: Target, value: float | None, name: str, comment: str | None, withdraw: bool
) -> Feedback:
    try:
        fields = {target.kind: target.id, "value": value, "name": name, "comment": comment}
        return Feedback.model_validate({**fields, "withdrawn": withdraw})
    except ValidationError as error:
        fault = error.errors()[0]
        if not fault["loc"]:
            raise BadFeedback(str(fault["msg"]).removeprefix("Value error, ")) from error
        raise BadFeedback(
            f"{'.'.join(map(str, fault['loc']))} = {fault['input']!r}: {fault['msg']}."
        ) from error


def find_target(store: Store, identifier: str) -> Target:
    """Return the execution in the store whose id is or begins with `identifier`."""
    kind, colon, rest = identifier.partition(":")
    named = [one for one in TARGET_KINDS if colon and one == kind]
    kinds, beginning = (named, rest) if named else (list(TARGET_KINDS), identifier)
    if not beginning:
        raise NoTarget("The id is empty. `ltrain sql` lists ids: SELECT TraceId FROM otel.spans.")
    candidates = list(_candidates(store, kinds, beginning))
    exact = [target for target in candidates if target.id == beginning]
    if len(found := exact or candidates) == 1:
        return found[0]
    if not found:
        raise NoTarget(
            f"The store {store.name} has no {' and no '.join(kinds)} whose id begins with "
            f"'{beginning}'. Feedback on a trace that has not arrived yet can be sent to "
            "POST /v1/feedback."
        )
    listed = ", ".join(f"{target.kind}:{target.id}" for target in found[:MAX_CANDIDATES])
    raise NoTarget(f"'{identifier}' is ambiguous. Choose one, with more of its id: {listed}.")


def _candidates(store: Store, kinds: list[TargetKind], beginning: str) -> Iterator[Target]:
    for kind in kinds:
        sql = (
            f"SELECT DISTINCT {_COLUMNS[kind]} AS id FROM otel.spans "
            "WHERE startsWith(id, {beginning:String}) AND SpanName != 'gen_ai.evaluation.result' "
            f"ORDER BY id LIMIT {MAX_CANDIDATES}"
        )
        for (id,) in store.query(sql, {"beginning": beginning}).iter_rows():
            yield Target(kind, str(id))
