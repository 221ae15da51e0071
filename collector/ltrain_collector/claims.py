"""What a bound key may not say: who a span is of, what a gateway saw, what an attempt is worth.

An agent holds the key of its own attempt, or of its run where one process makes many attempts. It
tells its own story; what is trained on, the reward and the tokens, is the word of others, and
neither may be made up. Every field that readers trust is checked: resource, scope, span, its
events, a log record, a metric's points.
Links may point anywhere: a span that carries its rollout is never resolved through them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ltrain_collector.grants import Grant
from ltrain_instrument import attributes as names

IDENTITY = {
    **{name: name for name in (names.RUN_ID, names.TASK_ID, names.DOMAIN, names.WAVE)},
    **{name: name for name in (names.SAMPLE_INDEX, names.ROLLOUT_ID)},
    **{name: name for name in (names.ATTEMPT_ID, names.MODE)},
    "agentlightning.rollout_id": names.ROLLOUT_ID,
    "agentlightning.attempt_id": names.ATTEMPT_ID,
}
"""Every attribute that readers take an identity from, and which it is."""

OPEN = {names.ATTEMPT_ID}
"""What the key of a rollout may leave open."""

OPEN_IN_RUN = OPEN | {
    *(names.ROLLOUT_ID, names.TASK_ID, names.DOMAIN, names.WAVE, names.SAMPLE_INDEX),
    names.MODE,
}
"""What the key of a run may leave open."""

# `ltrain.sender` is the store's word by now: what the request brought is removed
OWN = {names.SPANS, names.TRUNCATED, names.CUT, names.REDACTED}
"""Attributes of ours that an agent's own process writes; all others are a gateway's, a runner's or
a learner's."""

SERVICE = "ltrain-collector"
"""The service of the collector's own metrics."""

MEASURES = "ltrain_collector_"
"""How the names of the collector's own metrics begin."""

OTHERS_SCOPES = {names.SCOPE_RUNNER, names.SCOPE_GATEWAY, names.SCOPE_CAPTURE, names.SCOPE_LEARNER}
OTHERS_SPANS = {names.SPAN_ROLLOUT, names.SPAN_DISPATCH, names.SPAN_STEP, names.SPAN_PUBLISH}

TOKENS = {"prompt_token_ids", "response_token_ids", "logprobs.content"}
"""What agent-lightning calls the tokens of a call."""

REWARD = re.compile(
    r"gen_ai\.evaluation\.|agentlightning\.reward\.|"
    r"(?:trace\.|session\.)?(?:annotations|evaluations)\.\d+\.(?:annotation|evaluation)\."
)
"""Attributes that say what something is worth."""

REWARDING = {names.SPAN_EVALUATION, "agentlightning.annotation"}
"""Names of spans, events and log records that do."""


def fault(grant: Grant | None, resource: Resource, scope: InstrumentationScope, record: Any) -> str:
    """Say why `record` is refused, '' when it is not.

    Args:
        record: a span, a log record, or a metric, whose points are looked at too.
    """
    if grant is None or not grant.bound:
        return ""
    open_names = OPEN if grant.rollout else OPEN_IN_RUN
    if scope.name.strip() in OTHERS_SCOPES:
        return f"scope '{scope.name}' is not an agent's to use"
    rewarding = False
    for name in _names(record):
        if name in OTHERS_SPANS:
            return f"'{name}' is the runner's or the learner's to say"
        rewarding |= name in REWARDING
    for attributes in (resource.attributes, scope.attributes, *_attributes(record)):
        for one in attributes:
            if why := _fault(grant.identity, open_names, one):
                return why
            rewarding |= one.key == names.REWARD_SCOPE or REWARD.match(one.key) is not None
    if rewarding and not grant.rewards:
        return "this key may not say what a rollout is worth"
    return ""


def own_measure(name: str, posing: bool) -> str:
    """Return why a metric that came over OTLP is refused, '' when it is not.

    Args:
        posing: whether its resource has the collector's own service name.
    """
    if posing:
        return f"service.name '{SERVICE}' is the collector's own; give this service another name"
    if name.strip().startswith(MEASURES):
        return f"metrics '{MEASURES}*' are the collector's own; give this metric another name"
    return ""


def stamp(grant: Grant | None, record: Any) -> None:
    """Let what was sent with a bound key carry its identity: it is in no other rollout, whatever
    trace it names.

    Args:
        record: a span, a log record or a metric's point without `fault`.
    """
    if grant is None or not grant.bound:
        return
    others = [one for one in record.attributes if IDENTITY.get(one.key) not in grant.identity]
    carried = [
        KeyValue(key=name, value=AnyValue(string_value=value))
        for name, value in grant.identity.items()
    ]
    del record.attributes[:]
    record.attributes.extend([*others, *carried])


def _fault(identity: Mapping[str, str], open_names: Set[str], one: KeyValue) -> str:
    key = one.key
    if (which := IDENTITY.get(key)) is not None:
        claimed, bound = _text(one.value), identity.get(which)
        if claimed and claimed != bound and not (bound is None and which in open_names):
            return f"'{key}' claims what the key is not bound to"
    elif key in TOKENS or (
        key.startswith("ltrain.") and key not in OWN | {names.REWARD_SCOPE, names.SENDER}
    ):
        return f"'{key}' is not an agent's to say"
    return ""


def _names(record: Any) -> Iterator[str]:
    """Give what the record and its events are called, by every field that a reader may take."""
    for field in ("name", "event_name"):
        yield getattr(record, field, "").strip()
    for event in getattr(record, "events", ()):
        yield event.name.strip()
    for one in record.attributes if hasattr(record, "attributes") else ():
        if one.key in ("event.name", "name"):
            yield _text(one.value).strip()
    if hasattr(record, "body"):
        yield record.body.string_value.strip()


def _attributes(record: Any) -> Iterator[Iterable[KeyValue]]:
    if hasattr(record, "attributes"):
        yield record.attributes
    for event in getattr(record, "events", ()):
        yield event.attributes
    for point in points(record):
        yield point.attributes
        for exemplar in getattr(point, "exemplars", ()):
            yield exemplar.filtered_attributes
    for one in getattr(record, "metadata", ()):
        yield [one]


def points(record: Any) -> Iterator[Any]:
    """Give the points of a metric; of anything else none."""
    for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary"):
        if hasattr(record, kind):
            yield from getattr(record, kind).data_points


def _text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))
