"""One call out of the spans that describe it.

Request, response, parameters and token ids are the innermost span's (gateway or capture, then SDK,
then framework), of retries the last good one; agent, node and time are the outermost's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from ltrain_instrument import attributes
from ltrain_transforms.captures import differences
from ltrain_transforms.dialects.partial import Partial, Tokens
from ltrain_transforms.grouping import Described, ancestors
from ltrain_transforms.roles import Role
from ltrain_transforms.spans import Span

STRUCTURE: tuple[Literal["agent", "node"], ...] = ("agent", "node")
"""Fields where the outermost span's word counts."""
GATEWAY_FIELDS = frozenset(
    {"tokens", "measured", "policy", "policy_version", "params", "constrained", "delivered"}
)
"""Fields in which only a trusted sender is believed about a call that the gateway recorded."""
MESSAGES: tuple[Literal["input_messages", "output_messages"], ...] = (
    "input_messages",
    "output_messages",
)


@dataclass(slots=True)
class Call:
    """A call while it is put together; `row()` gives the finished cells."""

    spans: Sequence[Described]
    """Outermost first."""
    merged: Partial
    mismatch: str | None = None
    """What its captures disagree on."""
    requested_by: str | None = None
    parent_id: str | None = None
    agent: str | None = None
    node: str | None = None

    @property
    def outer(self) -> Span:
        return self.spans[0].span

    @property
    def call_id(self) -> str:
        return self.outer.span_id

    @property
    def kind(self) -> str:
        return self.merged["kind"]

    @property
    def cut(self) -> bool:
        """Whether a span that tells its messages was too long, so that texts are shortened."""
        cut = [one.partial for one in self.spans if attributes.CUT in one.span.attributes]
        told = ((partial, name) for partial in cut for name in MESSAGES if name in partial)
        return any(partial[name] is self.merged[name] for partial, name in told)


def merge(described: Sequence[Described]) -> Call:
    """Merge the partials of one call's spans, given outermost first."""
    if len(described) == 1:
        return Call(described, described[0].partial)
    believed = _believed(_heard(described))
    merged: Partial = {}
    for one in believed:
        merged |= one.partial
    for name in MESSAGES:
        if name in merged and merged[name].broken:
            whole = (one.partial[name] for one in believed[::-1] if name in one.partial)
            merged[name] = next((held for held in whole if not held.broken), merged[name])
    for one in reversed(described):
        for field_name in STRUCTURE:
            if field_name in one.partial:
                merged[field_name] = one.partial[field_name]
    merged.pop("status", None)
    if _failed(described):
        merged["status"] = "error"
    mismatch = differences([one.partial for one in believed], [o.span.scope for o in believed])
    return Call(described, merged, mismatch=mismatch)


def _heard(described: Sequence[Described]) -> Sequence[Described]:
    """Return the partials without what only the gateway may say of a call that it recorded.

    Else an agent could mark the calls that it does not want to be trained.
    """
    if not any(one.span.role == Role.GATEWAY for one in described):
        return described
    return [one if one.span.trusted else _silenced(one) for one in described]


def _silenced(one: Described) -> Described:
    kept = {name: value for name, value in one.partial.items() if name not in GATEWAY_FIELDS}
    return Described(one.span, cast(Partial, kept))


def _marking(spans: Sequence[Span]) -> Sequence[Span]:
    """Return the spans whose marks count: a trusted sender's, of a call that the gateway saw."""
    if any(span.role == Role.GATEWAY for span in spans):
        return [span for span in spans if span.trusted]
    return spans


def _believed(described: Sequence[Described]) -> list[Described]:
    """Sort so that who is to be believed most comes last.

    The gateway before captures, they before all others; then who saw the call succeed; then the
    instrumentation that is further in, whose longest span is shorter; of its spans, retries, the
    last.
    """
    longest: dict[str, int] = {}
    for one in described:
        span = one.span
        longest[span.scope] = max(longest.get(span.scope, 0), span.end - span.start)

    def goodness(one: Described) -> tuple[bool, bool, bool, int, int]:
        by_gateway = one.span.role == Role.GATEWAY
        measured, good = one.partial.get("measured", False), one.partial.get("status") != "error"
        return by_gateway, measured, good, -longest[one.span.scope], one.span.start

    return sorted(described, key=goodness)


def _failed(described: Sequence[Described]) -> bool:
    """Of an LLM call the outermost span decides (the SDK retried), of others any."""
    if described[0].partial["kind"] == "llm":
        return described[0].partial.get("status") == "error"
    return any(one.partial.get("status") == "error" for one in described)


def place(call: Call, enclosing: Mapping[str, Span], calls: Mapping[str, Call]) -> None:
    """Find the enclosing call, and the agent and node that `call` ran in.

    Args:
        enclosing: every span of the execution by id.
        calls: every call of the execution by the id of each of its spans.
    """
    above = [
        calls[span.span_id] for span in ancestors(call.outer, enclosing) if span.span_id in calls
    ]
    outside = [one for one in above if one is not call]
    call.parent_id = outside[0].call_id if outside else None
    merged = call.merged
    nodes = (one.merged.get("node") or one.outer.name for one in outside if one.kind == "node")
    call.node = merged.get("node") or next(nodes, None)
    agents = (one.merged.get("agent") for one in outside)
    agent = merged.get("agent") or next((name for name in agents if name), None)
    call.agent = agent or call.node


class Cells(NamedTuple):
    """The cells of `CALLS` that one call decides."""

    execution_id: str
    call_id: str
    trace_id: str
    parent_id: str | None
    start: int
    end: int
    kind: str
    name: str
    version: str | None
    endpoint: str | None
    agent: str | None
    node: str | None
    model: str | None
    policy: str | None
    policy_version: int | None
    params: str | None
    tools: str | None
    temperature: float | None
    input: str | None
    output: str | None
    arguments: str | None
    result: str | None
    tool_call_id: str | None
    status: str
    error_type: str | None
    finish_reason: str | None
    input_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cached_tokens: int | None
    requested_by: str | None
    constrained: bool
    delivered: bool
    redacted: bool
    truncated: bool
    capture_mismatch: str | None
    source_spans: list[str]
    token_source: str | None
    tokens: Tokens | None
    """Token ids as they were written."""


def row(call: Call) -> Cells:
    """Give the cells that one call decides."""
    merged, outer = call.merged, call.outer
    spans = [one.span for one in call.spans]
    marking, tokens = _marking(spans), merged.get("tokens")
    params, version = merged.get("params"), merged.get("policy_version")
    given, gave, arguments, result = _texts(merged)
    return Cells(
        execution_id=outer.execution_id,
        call_id=outer.span_id,
        trace_id=outer.trace_id,
        parent_id=call.parent_id,
        start=outer.start,
        end=max([span.end for span in spans]),
        kind=call.kind,
        name=_name(call),
        version=merged.get("version"),
        endpoint=merged.get("endpoint"),
        agent=call.agent,
        node=call.node,
        model=merged.get("model"),
        policy=merged.get("policy"),
        policy_version=version if version is None or abs(version) < 1 << 31 else None,
        params=None if params is None else params.text,
        tools=merged.get("tools"),
        temperature=None if params is None else params.temperature,
        input=given,
        output=gave,
        arguments=arguments,
        result=result,
        tool_call_id=merged.get("tool_call_id"),
        status=merged.get("status", "ok"),
        error_type=merged.get("error_type"),
        finish_reason=merged.get("finish_reason"),
        input_tokens=merged.get("input_tokens"),
        output_tokens=merged.get("output_tokens"),
        reasoning_tokens=merged.get("reasoning_tokens"),
        cached_tokens=merged.get("cached_tokens"),
        requested_by=call.requested_by,
        constrained=merged.get("constrained", False),
        delivered=merged.get("delivered", True),
        redacted=any([span.flag(attributes.REDACTED) for span in marking]) or call.cut,
        truncated=any([span.flag(attributes.TRUNCATED) for span in marking]),
        capture_mismatch=call.mismatch,
        source_spans=[span.span_id for span in spans],
        token_source=tokens and tokens.recorded_by,
        tokens=tokens,
    )


def _name(call: Call) -> str:
    merged = call.merged
    if call.kind in ("llm", "embedding"):
        return merged.get("model") or call.outer.name
    if call.kind == "agent":
        return merged.get("agent") or call.outer.name
    return merged.get("name") or call.outer.name


def _texts(merged: Partial) -> tuple[str | None, str | None, str | None, str | None]:
    """Give input and output, a tool's arguments and result: they are its input and output."""
    if merged["kind"] == "llm":
        asked, answered = merged.get("input_messages"), merged.get("output_messages")
        said = None if answered is None else answered.text
        return None if asked is None else asked.text, said, None, None
    if merged["kind"] == "tool":
        arguments, result = merged.get("arguments"), merged.get("output")
        return arguments, result, arguments, result
    return merged.get("input"), merged.get("output"), None, None
