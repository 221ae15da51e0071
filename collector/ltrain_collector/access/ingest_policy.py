"""The ingest policy: what a bound key cannot send, such as another identity, tokens or rewards.

An agent has the key of its own attempt, or of its run if one process makes many attempts. It must
not forge what training uses: the identity, the tokens and the reward of an attempt. Every field
that readers trust is checked: resource, scope, span and its events, log record, metric and points.
Links are not checked: a span with a rollout id is never assigned to a rollout by its links.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ltrain_collector.access.grants import Grant
from ltrain_collector.promoted_columns import IDENTITY_ATTRIBUTES
from ltrain_instrument import attributes as names

OPEN_FOR_ROLLOUT_KEY = {names.ATTEMPT_ID}
"""Identity attributes that the key of a rollout can leave unbound."""

OPEN_FOR_RUN_KEY = {*IDENTITY_ATTRIBUTES.values()} - {names.RUN_ID}
"""Identity attributes that the key of a run can leave unbound."""

# the store has already replaced the `ltrain.sender` of the request
AGENT_ATTRIBUTES = {names.SPANS, names.TRUNCATED, names.CUT, names.REDACTED}
"""The `ltrain.*` attributes that agents set, besides the versions of the prompts that they read;
only gateway, runner and learner set others."""

COLLECTOR_SERVICE = "ltrain-collector"
"""The service name of the collector's own metrics."""

COLLECTOR_METRICS = "ltrain_collector_"
"""The prefix of the collector's own metrics."""

RESERVED_SCOPES = {
    names.SCOPE_RUNNER,
    names.SCOPE_GATEWAY,
    names.SCOPE_CAPTURE,
    names.SCOPE_LEARNER,
    names.SCOPE_PERSON,
}
RESERVED_NAMES = {
    names.SPAN_ROLLOUT,
    names.SPAN_DISPATCH,
    names.SPAN_STEP,
    names.SPAN_PUBLISH,
    names.SPAN_ALARM,
}

TOKEN_ATTRIBUTES = {"prompt_token_ids", "response_token_ids", "logprobs.content"}
"""agent-lightning's attributes with the tokens of a call."""

REWARD_ATTRIBUTE = re.compile(
    r"gen_ai\.evaluation\.|agentlightning\.reward\.|"
    r"(?:trace\.|session\.)?(?:annotations|evaluations)\.\d+\.(?:annotation|evaluation)\."
)
"""Attributes that contain a reward."""

REWARD_NAMES = {names.SPAN_EVALUATION, "agentlightning.annotation"}
"""Names of spans, events and log records that contain a reward."""


def find_violation(
    grant: Grant | None, resource: Resource, scope: InstrumentationScope, record: Any
) -> str:
    """Return why the policy rejects `record`, or '' if it does not.

    Args:
        record: a span, a log record, or a metric with its points.
    """
    if grant is None or not grant.bound:
        return ""
    open_names = OPEN_FOR_ROLLOUT_KEY if grant.rollout else OPEN_FOR_RUN_KEY
    if scope.name.strip() in RESERVED_SCOPES:
        return f"scope '{scope.name}' is reserved for ltrain's own processes"
    has_reward = False
    for name in _names(record):
        if name in RESERVED_NAMES:
            return f"the name '{name}' is reserved for the runner and the learner"
        has_reward |= name in REWARD_NAMES
    for attributes in (resource.attributes, scope.attributes, *_attributes(record)):
        for one in attributes:
            if violation := _attribute_violation(grant.identity, open_names, one):
                return violation
            has_reward |= (
                one.key == names.REWARD_SCOPE or REWARD_ATTRIBUTE.match(one.key) is not None
            )
    if has_reward and not grant.rewards:
        return "this key does not allow rewards"
    return ""


def find_reserved_metric(name: str, names_collector: bool) -> str:
    """Return why a metric that came over OTLP is rejected, or '' if it is not.

    Args:
        names_collector: whether its resource has the collector's own service name.
    """
    if names_collector:
        return f"service.name '{COLLECTOR_SERVICE}' is the collector's own; use another name"
    if name.strip().startswith(COLLECTOR_METRICS):
        return f"metrics '{COLLECTOR_METRICS}*' are the collector's own; use another name"
    return ""


def attach_identity(grant: Grant | None, record: Any) -> None:
    """Set the identity of a bound key on a record, so that its trace id assigns it to no other
    rollout.

    Args:
        record: a span, a log record or a metric's point without a violation.
    """
    if grant is None or not grant.bound:
        return
    other_attributes = [
        one for one in record.attributes if IDENTITY_ATTRIBUTES.get(one.key) not in grant.identity
    ]
    identity_attributes = [
        KeyValue(key=name, value=AnyValue(string_value=value))
        for name, value in grant.identity.items()
    ]
    del record.attributes[:]
    record.attributes.extend([*other_attributes, *identity_attributes])


def _attribute_violation(identity: Mapping[str, str], open_names: Set[str], one: KeyValue) -> str:
    key = one.key
    if (attribute := IDENTITY_ATTRIBUTES.get(key)) is not None:
        value, bound = _value_text(one.value), identity.get(attribute)
        if value and value != bound and not (bound is None and attribute in open_names):
            return f"'{key}' names an identity that the key is not bound to"
    elif key in TOKEN_ATTRIBUTES or (
        key.startswith("ltrain.")
        and not key.startswith(names.PROMPT)
        and key not in AGENT_ATTRIBUTES | {names.REWARD_SCOPE, names.SENDER}
    ):
        return f"'{key}' is reserved for ltrain's own processes"
    return ""


def _names(record: Any) -> Iterator[str]:
    """Yield the names of a record and its events, from every field in which readers look."""
    for field in ("name", "event_name"):
        yield getattr(record, field, "").strip()
    for event in getattr(record, "events", ()):
        yield event.name.strip()
    for one in record.attributes if hasattr(record, "attributes") else ():
        if one.key in ("event.name", "name"):
            yield _value_text(one.value).strip()
    if hasattr(record, "body"):
        yield record.body.string_value.strip()


def _attributes(record: Any) -> Iterator[Iterable[KeyValue]]:
    if hasattr(record, "attributes"):
        yield record.attributes
    for event in getattr(record, "events", ()):
        yield event.attributes
    for point in metric_points(record):
        yield point.attributes
        for exemplar in getattr(point, "exemplars", ()):
            yield exemplar.filtered_attributes
    for one in getattr(record, "metadata", ()):
        yield [one]


def metric_points(record: Any) -> Iterator[Any]:
    """Yield the points of a metric; other records have none."""
    for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary"):
        if hasattr(record, kind):
            yield from getattr(record, kind).data_points


def _value_text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))
