"""The ingest policy: what a bound key cannot send, such as another identity, tokens or rewards.

An agent has the key of its own attempt, or of its run if one process makes many attempts. It must
not forge what training uses: the identity, the tokens and the reward of an attempt. Every field
that readers trust is checked: resource, scope, span and its events, log record, metric and points.
Links are not checked: a span with a rollout id is never assigned to a rollout by its links.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

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

NO_REWARDS = "this key does not allow rewards"

IDENTITY, RESERVED, REWARD, NAME = "identity", "reserved", "reward", "name"
"""Kinds of attributes that a bound key cannot set, or whose value is checked."""

_KINDS: dict[str, str] = {}
"""Kinds by the names of attributes, which repeat: at most `MAX_KINDS` of at most `MAX_LENGTH`."""

MAX_KINDS, MAX_LENGTH = 8192, 128
"""Names, and characters of a name."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The largest record that a sender may send; 0 means no limit."""

    attributes: int = 0
    events: int = 0
    links: int = 0

    def violation(self, record: Any) -> str:
        """Return why a span or a log record is too large, or ''."""
        if isinstance(record, Metric):
            return ""
        if self.attributes and len(record.attributes) > self.attributes:
            return _too_many(len(record.attributes), "attributes", self.attributes)
        if not isinstance(record, Span):
            return ""
        if self.events and len(record.events) > self.events:
            return _too_many(len(record.events), "events", self.events)
        if self.links and len(record.links) > self.links:
            return _too_many(len(record.links), "links", self.links)
        return ""


def _too_many(count: int, what: str, limit: int) -> str:
    return f"a record has {count} {what}, and its sender may send {limit}"


class IngestPolicy:
    """Checks the records of one request against the rights of its key, and sets their identity.

    The methods return why a part of the request is rejected, or ''.
    """

    def __init__(self, grant: Grant | None = None, shape: Shape | None = None) -> None:
        self._grant = grant if grant is not None and grant.bound else None
        self._shape = shape if shape != Shape() else None
        identity = {} if self._grant is None else self._grant.identity
        self._open = OPEN_FOR_ROLLOUT_KEY if names.ROLLOUT_ID in identity else OPEN_FOR_RUN_KEY
        self._identity = {
            name: KeyValue(key=name, value=AnyValue(string_value=value))
            for name, value in identity.items()
        }
        self._checked: Any = None
        """The last record without a violation."""
        self._found = set[str]()
        """The attributes of the key's identity that this record has with the right value."""
        self._is_ambiguous = False
        """Whether it also has some without a value, or under other names."""

    def resource_violation(self, resource: Resource) -> str:
        """Check a resource, once for all its records."""
        return self._attributes_violation(resource.attributes) if self._grant else ""

    def scope_violation(self, scope: InstrumentationScope) -> str:
        """Check a scope, once for all its records."""
        if self._grant is None:
            return ""
        if scope.name.strip() in RESERVED_SCOPES:
            return f"scope '{scope.name}' is reserved for ltrain's own processes"
        return self._attributes_violation(scope.attributes)

    def record_violation(self, record: Any) -> str:
        """Check a span, a log record, or a metric with its points."""
        if self._shape is not None and (violation := self._shape.violation(record)):
            return violation
        if self._grant is None:
            return ""
        for name in _names(record):
            if violation := self._name_violation(name.strip()):
                return violation
        for attributes in _nested_attributes(record):
            if violation := self._attributes_violation(attributes):
                return violation
        self._checked, self._is_ambiguous = record, False
        self._found.clear()
        return self._attributes_violation(getattr(record, "attributes", ()))

    def attach_identity(self, record: Any) -> None:
        """Set the key's identity on a record, so that its trace id assigns it to no other rollout.

        Args:
            record: a span, a log record or a metric's point without a violation.
        """
        if not self._identity:
            return
        if record is self._checked and not self._is_ambiguous:
            missing = self._identity.keys() - self._found
            record.attributes.extend([self._identity[name] for name in missing])
            return
        kept = [
            one
            for one in record.attributes
            if IDENTITY_ATTRIBUTES.get(one.key) not in self._identity
        ]
        del record.attributes[:]
        record.attributes.extend([*kept, *self._identity.values()])

    def _attributes_violation(self, attributes: Iterable[KeyValue]) -> str:
        known = _KINDS.get
        for one in attributes:
            key = one.key
            kind = known(key)
            if kind is None:
                kind = _kind(key)
            if kind and (violation := self._attribute_violation(key, kind, one.value)):
                return violation
        return ""

    def _attribute_violation(self, key: str, kind: str, value: AnyValue) -> str:
        if kind == IDENTITY:
            return self._identity_violation(key, value)
        if kind == RESERVED:
            return f"'{key}' is reserved for ltrain's own processes"
        if kind == NAME:
            return self._name_violation(_value_text(value).strip())
        return self._reward_violation()

    def _identity_violation(self, key: str, value: AnyValue) -> str:
        attribute = IDENTITY_ATTRIBUTES[key]
        bound = self._identity.get(attribute)
        if bound is None and attribute in self._open:
            return ""
        text = value.string_value or _value_text(value)
        if text and (bound is None or text != bound.value.string_value):
            return f"'{key}' names an identity that the key is not bound to"
        if key == attribute and text and (value.string_value or value.HasField("int_value")):
            self._found.add(key)
        else:
            self._is_ambiguous = True
        return ""

    def _name_violation(self, name: str) -> str:
        if name in RESERVED_NAMES:
            return f"the name '{name}' is reserved for the runner and the learner"
        return self._reward_violation() if name in REWARD_NAMES else ""

    def _reward_violation(self) -> str:
        return "" if self._grant is not None and self._grant.rewards else NO_REWARDS


UNLIMITED = IngestPolicy()
"""The policy of records that ltrain itself reads from files, and of its own metrics."""


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


def _kind(key: str) -> str:
    """Return the kind of an attribute, or '' if every sender may set it, and remember it."""
    kind = _kind_of(key)
    if len(key) <= MAX_LENGTH and len(_KINDS) < MAX_KINDS:
        _KINDS[key] = kind
    return kind


def _kind_of(key: str) -> str:
    if key in IDENTITY_ATTRIBUTES:
        return IDENTITY
    if key == names.REWARD_SCOPE or REWARD_ATTRIBUTE.match(key):
        return REWARD
    if key in TOKEN_ATTRIBUTES or (
        key.startswith("ltrain.")
        and not key.startswith(names.PROMPT)
        and key not in AGENT_ATTRIBUTES | {names.SENDER, names.FORWARDED_BY}
    ):
        return RESERVED
    return NAME if key in ("event.name", "name") else ""


def _names(record: Any) -> Iterator[str]:
    """Yield the names of a record and its events, from every field in which readers look."""
    if isinstance(record, LogRecord):
        yield from (record.event_name, record.body.string_value)
        return
    yield record.name
    if isinstance(record, Span):
        for event in record.events:
            yield event.name


def _nested_attributes(record: Any) -> Iterator[Iterable[KeyValue]]:
    """Yield the attributes of a span's events, or of a metric's points and itself."""
    if isinstance(record, Span):
        for event in record.events:
            yield event.attributes
    elif isinstance(record, Metric):
        yield record.metadata
        for point in _points(record):
            yield point.attributes
            for exemplar in getattr(point, "exemplars", ()):
                yield exemplar.filtered_attributes


def _points(metric: Metric) -> Iterator[Any]:
    for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary"):
        yield from getattr(metric, kind).data_points


def _value_text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))
