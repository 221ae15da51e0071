"""What agent code may say about itself: which rollout this is, its task, and its rewards."""

import functools
import json
import logging
import math
import os
from types import TracebackType
from typing import Any, Literal
from uuid import uuid4

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan

from ltrain_instrument import attributes, capture
from ltrain_instrument.ambient import Stay, enter, identity_here, identity_in, leave
from ltrain_instrument.bridge import innermost_span
from ltrain_instrument.errors import BadReward, BadSetting, UnknownName
from ltrain_instrument.identity import Identity, rollout_id

_SCOPES = ("rollout", "call")
_PARTS = ("run", "mode", "wave", "task", "sample")

_logger = logging.getLogger("ltrain.rollouts")


def task() -> dict[str, Any] | None:
    """Give the task that was handed to this process in LTRAIN_TASK; None where there is none.

    Raises:
        BadSetting: when the variable holds anything but a JSON object.
    """
    text = os.environ.get("LTRAIN_TASK")
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadSetting(f"LTRAIN_TASK='{text[:80]}' is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise BadSetting(f'LTRAIN_TASK=\'{text[:80]}\' is not a JSON object, e.g. {{"id": "1"}}.')
    return found


def reward(
    value: float,
    name: str = "reward",
    *,
    scope: Literal["rollout", "call"] = "rollout",
    label: str | None = None,
    explanation: str | None = None,
) -> None:
    """Judge what has been done: the whole rollout, or the call that this code runs in.

    Of several rewards with one name for one target the last counts. Outside of any rollout and
    span it is kept, with one warning. It does nothing where the process is not instrumented.

    Raises:
        BadReward: when `value` is not a finite number.
        UnknownName: when `scope` is neither `rollout` nor `call`.
    """
    if scope not in _SCOPES:
        raise UnknownName("reward scope", scope, _SCOPES)
    known = capture.current()
    tracer = known.tracer if known else trace.get_tracer(attributes.SCOPE_INSTRUMENT)
    judged: dict[str, str | int | float | None] = {
        attributes.EVALUATION_NAME: name,
        attributes.EVALUATION_VALUE: _finite(value),
        attributes.EVALUATION_LABEL: label,
        attributes.EVALUATION_EXPLANATION: explanation,
        attributes.REWARD_SCOPE: scope,
        **(identity := identity_here()).attributes(),
    }
    said = {key: value for key, value in judged.items() if value is not None}
    where = _judged_context()
    if (
        known
        and not identity.rollout
        and not trace.get_current_span(where).get_span_context().is_valid
    ):
        _warn_of_nothing_judged()
    tracer.start_span(attributes.SPAN_EVALUATION, where, attributes=said).end()


@functools.cache
def _warn_of_nothing_judged() -> None:
    _logger.warning(
        "ltrain: a reward was given outside of any rollout and span: it is kept, but judges "
        "nothing. Give it inside `with ltrain.rollout(...)`, or start the process with "
        "LTRAIN_ROLLOUT_ID."
    )


def _finite(value: float) -> float:
    if isinstance(value, (str, bytes)):
        raise BadReward(f"The reward {value!r} is text, not a number. Give float(...) of it.")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise BadReward(f"The reward {value!r} is not a number.") from error
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadReward(f"The reward {value!r} is not finite; advantages cannot be made from it.")
    return number


def _judged_context() -> Context:
    """Give the innermost span's context, else that of the rollout's first span."""
    span = innermost_span()
    known = capture.current()
    if not span.get_span_context().is_valid and known is not None:
        anchor = known.census.anchor(identity_here())
        span = NonRecordingSpan(anchor) if anchor else span
    return trace.set_span_in_context(span)


class rollout:
    """Mark the work inside as one rollout: every span there carries its identity.

    Works with `with` and `async with`, several at a time in threads and tasks, each its own.
    Fields are those of `Identity`; without `rollout` the id is derived from run, mode, wave, task
    and sample where all are given, and is a new one otherwise. Without identity and fields it is
    the rollout this process was started for. Gives the identity.
    """

    __slots__ = ("_stays", "identity")

    def __init__(self, identity: Identity | None = None, /, **fields: Any) -> None:
        unknown = sorted(fields.keys() - Identity.__slots__)
        if unknown:
            raise UnknownName("identity field", unknown[0], Identity.__slots__)
        self.identity = _named(identity, fields)
        self._stays: list[Stay] = []

    def __enter__(self) -> Identity:
        self._stays.append(enter(self.identity))
        return self.identity

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        leave(self._stays.pop())
        known = capture.current()
        if known is not None:
            known.census.report(self.identity, known.tracer)

    async def __aenter__(self) -> Identity:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, where)


def _named(identity: Identity | None, fields: dict[str, Any]) -> Identity:
    if identity is None and not fields:
        identity = identity_in() or Identity.from_environ()
    given = {name: getattr(identity, name) for name in Identity.__slots__} if identity else {}
    given.update(fields)
    given = {name: value for name, value in given.items() if value is not None}
    given.setdefault("mode", "prod")
    given.setdefault("attempt", 0)
    if "rollout" not in given:
        parts = {name: given[name] for name in _PARTS if name in given}
        given["rollout"] = rollout_id(**parts) if len(parts) == len(_PARTS) else uuid4().hex
    return Identity(**given)
