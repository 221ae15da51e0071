"""The API for agent code: the rollout, its task and its rewards."""

import functools
import json
import logging
import os
from typing import Any, Literal
from uuid import uuid4

from opentelemetry import trace as otel_trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan

from ltrain_instrument import attributes
from ltrain_instrument.errors import BadReward, BadSetting, UnknownName
from ltrain_instrument.feedback import Target, to_score
from ltrain_instrument.frameworks import innermost_span
from ltrain_instrument.identity import (
    Identity,
    IdentityScope,
    current_identity,
    enter_identity,
    exit_identity,
    identity_from_context,
    rollout_id,
)
from ltrain_instrument.lifecycle import capture

_SCOPES = ("rollout", "call")
_PARTS = ("run", "mode", "wave", "task", "sample")

_logger = logging.getLogger("ltrain.rollouts")


def task() -> dict[str, Any] | None:
    """Return the task in LTRAIN_TASK; None if there is none.

    Raises:
        BadSetting: when the variable does not hold a JSON object.
    """
    text = os.environ.get("LTRAIN_TASK")
    if not text:
        return None
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise BadSetting(f"LTRAIN_TASK='{text[:80]}' is not valid JSON: {error}.") from error
    if not isinstance(parsed, dict):
        raise BadSetting(f'LTRAIN_TASK=\'{text[:80]}\' is not a JSON object, e.g. {{"id": "1"}}.')
    return parsed


def reward(
    value: float,
    name: str = "reward",
    *,
    scope: Literal["rollout", "call"] = "rollout",
    label: str | None = None,
    explanation: str | None = None,
    rollout: str | None = None,
    trace: str | None = None,
    session: str | None = None,
) -> None:
    """Record a reward for the whole rollout, or for the call in which this code runs.

    With the id of a `rollout`, a `trace` (32 hexadecimal digits) or a `session` it is feedback on
    that execution, which may have run anywhere at any time before.

    Of several rewards with the same name and target the last one counts. A reward outside of any
    rollout and span is recorded, with one warning. Without instrumentation this does nothing.

    Raises:
        BadReward: when `value` is not a finite number of at most 1e100, several targets are named,
            or feedback judges a call.
        UnknownName: when `scope` is neither `rollout` nor `call`.
    """
    if scope not in _SCOPES:
        raise UnknownName("reward scope", scope, _SCOPES)
    values: dict[str, str | int | float | None] = {
        attributes.EVALUATION_NAME: name,
        attributes.EVALUATION_VALUE: finite_reward(value),
        attributes.EVALUATION_LABEL: label,
        attributes.EVALUATION_EXPLANATION: explanation,
        attributes.REWARD_SCOPE: scope,
    }
    target = Target.from_ids(rollout, trace, session)
    if target is None:
        identity, in_context = current_identity(), _target_context()
        _check_target(identity, in_context)
        values |= identity.attributes()
    elif scope == "call":
        raise BadReward(f"Feedback judges a whole {target.kind}, not a call. Remove scope='call'.")
    else:
        in_context = target.parent_context()
        values |= target.attributes()
    active = capture.current_capture()
    tracer = active.tracer if active else otel_trace.get_tracer(attributes.SCOPE_INSTRUMENT)
    span_attributes = {key: value for key, value in values.items() if value is not None}
    tracer.start_span(attributes.SPAN_EVALUATION, in_context, attributes=span_attributes).end()


def _check_target(identity: Identity, in_context: Context) -> None:
    """Warn where a recorded reward has neither a rollout nor a span that it judges."""
    span = otel_trace.get_current_span(in_context).get_span_context()
    if capture.current_capture() and not identity.rollout and not span.is_valid:
        _warn_of_reward_without_target()


@functools.cache
def _warn_of_reward_without_target() -> None:
    _logger.warning(
        "ltrain: reward() was called outside of any rollout and span: the reward is recorded, but "
        "applies to nothing. Call it inside `with ltrain.rollout(...)`, or start the process with "
        "LTRAIN_ROLLOUT_ID, or name its target with rollout=, trace= or session=."
    )


def finite_reward(value: float) -> float:
    """Return `value` as a number that counts.

    Raises:
        BadReward: when it is not a finite number, or is beyond `MAX_SCORE`.
    """
    if isinstance(value, (str, bytes)):
        raise BadReward(f"The reward {value!r} is text, not a number. Convert it with float(...).")
    try:
        return to_score(value)
    except BadReward:
        raise
    except (TypeError, ValueError) as error:
        raise BadReward(f"The reward {value!r} is not a number. Pass an int or a float.") from error


def _target_context() -> Context:
    """Return the context of the innermost span, else of the rollout's first span."""
    span = innermost_span()
    active = capture.current_capture()
    if not span.get_span_context().is_valid and active is not None:
        first_span = active.span_counter.first_span(current_identity())
        span = NonRecordingSpan(first_span) if first_span else span
    return otel_trace.set_span_in_context(span)


class rollout:
    """Mark the work inside as one rollout: every span in it carries the rollout's identity.

    Use it with `with` or `async with`, also for several rollouts at a time in threads and tasks.
    The fields are those of `Identity`. Without `rollout`, the id is derived from run, mode, wave,
    task and sample if all are present; otherwise it is a new one. Without identity and fields, it
    is the rollout for which this process was started. The context manager returns the identity.
    """

    # contextlib has no manager that works with `with` and `async with` and can be entered again

    __slots__ = ("_scopes", "identity")

    def __init__(self, identity: Identity | None = None, /, **fields: Any) -> None:
        unknown = sorted(fields.keys() - Identity.__slots__)
        if unknown:
            raise UnknownName("identity field", unknown[0], Identity.__slots__)
        self.identity = _complete_identity(identity, fields)
        self._scopes: list[IdentityScope] = []

    def __enter__(self) -> Identity:
        self._scopes.append(enter_identity(self.identity))
        return self.identity

    def __exit__(self, *_: object) -> None:
        exit_identity(self._scopes.pop())
        active = capture.current_capture()
        if active is not None:
            active.span_counter.report(self.identity, active.tracer)

    async def __aenter__(self) -> Identity:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


def _complete_identity(identity: Identity | None, fields: dict[str, Any]) -> Identity:
    if identity is None and not fields:
        identity = identity_from_context() or Identity.from_environ()
    values = {name: getattr(identity, name) for name in Identity.__slots__} if identity else {}
    values.update(fields)
    values = {name: value for name, value in values.items() if value is not None}
    values.setdefault("mode", "prod")
    values.setdefault("attempt", 0)
    if "rollout" not in values:
        parts = {name: values[name] for name in _PARTS if name in values}
        values["rollout"] = rollout_id(**parts) if len(parts) == len(_PARTS) else uuid4().hex
    return Identity(**values)
