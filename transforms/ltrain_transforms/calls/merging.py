"""Merge the spans that describe one call.

Request, response, parameters and token ids come from the innermost span (gateway or capture, then
SDK, then framework); of retries, from the last that succeeded. Agent, node and times come from the
outermost span.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from ltrain_instrument import attributes
from ltrain_transforms.calls.call import Call, ancestors, comparable_output
from ltrain_transforms.dialects import AttributeMessages, Partial, Tokens
from ltrain_transforms.tables import CellSource, columns_from
from ltrain_transforms.traces import Role, Span, tool_requests

OUTERMOST_FIELDS: tuple[Literal["agent", "node"], ...] = ("agent", "node")
"""Fields that come from the outermost span."""
GATEWAY_FIELDS = frozenset(
    {
        *("tokens", "measured", "policy", "policy_version", "params"),
        *("constrained", "constraint", "continued", "not_continued", "delivered"),
    }
)
"""Fields that only a trusted sender may write for a call that the gateway recorded."""
MESSAGE_FIELDS: tuple[Literal["input_messages", "output_messages"], ...] = (
    "input_messages",
    "output_messages",
)
COMPARED = ("output", "tools")
"""The fields by which captures of one call are compared."""


def merge_spans(described: Sequence[Call]) -> Call:
    """Merge the partials of one call's spans; the outermost span is first."""
    if len(described) == 1:
        return described[0]
    ordered = _by_priority(_without_forged(described))
    merged: Partial = {}
    for one in ordered:
        merged |= one.partial
    for name in MESSAGE_FIELDS:
        if name in merged and merged[name].broken:
            others = (one.partial[name] for one in ordered[::-1] if name in one.partial)
            merged[name] = next((one for one in others if not one.broken), merged[name])
    _take_request_ids(merged, ordered)
    for one in reversed(described):
        for field_name in OUTERMOST_FIELDS:
            if field_name in one.partial:
                merged[field_name] = one.partial[field_name]
    merged.pop("status", None)
    merged.pop("excerpt", None)
    if not all(one.partial.get("untimed") for one in described):
        merged.pop("untimed", None)
    if _failed(described):
        merged["status"] = "error"
    mismatch = compare_captures([one.partial for one in ordered], [o.span.scope for o in ordered])
    return Call(described[0].span, merged, described, mismatch)


def _take_request_ids(merged: Partial, ordered: Sequence[Call]) -> None:
    """Take an equal answer with the ids of its tool calls where the innermost one lacks them."""
    answer = merged.get("output_messages")
    if answer is None or _has_request_ids(answer):
        return
    outputs = (one.partial.get("output_messages") for one in reversed(ordered))
    equal = (one for one in outputs if one is not None and one.comparable == answer.comparable)
    merged["output_messages"] = next(filter(_has_request_ids, equal), answer)


def _has_request_ids(messages: AttributeMessages) -> bool:
    return all(request.id for request in tool_requests(messages.messages))


def compare_captures(partials: Sequence[Partial], scopes: Sequence[str]) -> str | None:
    """Return where captures of one call differ: `output`, `tools`, `output,tools`, or None.

    Args:
        partials: the fields of each span; the one with the highest priority is last.
        scopes: the instrumentation of each; two spans of one scope are retries, not captures.
    """
    expected = comparable_output(partials[-1])
    if expected is None:
        return None
    others = [
        output
        for partial, scope in zip(partials, scopes, strict=True)
        if scope != scopes[-1] and partial.get("status") != "error"
        if (output := comparable_output(partial)) is not None and output != expected
    ]
    differ = [any(output[n] != expected[n] for output in others) for n in range(len(COMPARED))]
    return ",".join(part for part, unlike in zip(COMPARED, differ, strict=True) if unlike) or None


def _without_forged(described: Sequence[Call]) -> Sequence[Call]:
    """Remove `GATEWAY_FIELDS` of untrusted spans from a call that the gateway recorded.

    Otherwise an agent could mark the calls that it does not want to be trained.
    """
    if not any(one.span.role == Role.GATEWAY for one in described):
        return described
    return [one if one.span.trusted else _without_gateway_fields(one) for one in described]


def _without_gateway_fields(one: Call) -> Call:
    rest = {name: value for name, value in one.partial.items() if name not in GATEWAY_FIELDS}
    return Call(one.span, cast(Partial, rest))


def _trusted_spans(spans: Sequence[Span]) -> Sequence[Span]:
    """Return the spans whose flags count: of a call with a gateway span, only trusted ones."""
    if any(span.role == Role.GATEWAY for span in spans):
        return [span for span in spans if span.trusted]
    return spans


def _by_priority(described: Sequence[Call]) -> list[Call]:
    """Sort so that the span whose fields win comes last.

    The gateway wins over captures, captures over all others; then a span that succeeded; then the
    inner instrumentation, whose longest span is shorter; of its spans, which are retries, the last.
    """
    longest: dict[str, int] = {}
    for one in described:
        span = one.span
        longest[span.scope] = max(longest.get(span.scope, 0), span.end - span.start)

    def priority(one: Call) -> tuple[bool, bool, bool, int, int]:
        by_gateway = one.span.role == Role.GATEWAY
        measured = one.partial.get("measured", False)
        succeeded = one.partial.get("status") != "error"
        return by_gateway, measured, succeeded, -longest[one.span.scope], one.span.start

    return sorted(described, key=priority)


def _failed(described: Sequence[Call]) -> bool:
    """An LLM call failed if its outermost span did (the SDK retries); others if any span did.

    It also failed if no attempt at the gateway succeeded: a client that is interrupted may record
    the call without an error.
    """
    failed = [one.partial.get("status") == "error" for one in described]
    if described[0].partial["kind"] != "llm":
        return any(failed)
    attempts = [
        fault for one, fault in zip(described, failed, strict=True) if one.span.role == Role.GATEWAY
    ]
    return failed[0] or (bool(attempts) and all(attempts))


def place_call(call: Call, enclosing: Mapping[str, Span], calls: Mapping[str, Call]) -> None:
    """Fill the enclosing call, the agent and the node of `call`.

    Args:
        enclosing: every span of the execution, by id.
        calls: every call of the execution, by the id of each of its spans.
    """
    # a log record may cover the client's own span, and name no parent
    outside = next(
        filter(None, (_outside(one, call, enclosing, calls) for one in call.singles)), []
    )
    call.requested_by = None  # of an earlier attempt to merge these spans
    merged = call.partial
    delegating = calls.get(merged.get("delegated_by", ""))
    above = outside[0] if outside else delegating
    call.parent_id = above.call_id if above is not None else None
    nodes = (one.partial.get("node") or one.span.name for one in outside if one.kind == "node")
    call.node = merged.get("node") or next(nodes, None)
    agents = (one.partial.get("agent") for one in outside)
    agent = merged.get("agent") or next((name for name in agents if name), None)
    call.agent = agent or call.node or merged.get("guessed_agent")


def _outside(
    one: Call, call: Call, enclosing: Mapping[str, Span], calls: Mapping[str, Call]
) -> list[Call]:
    """Return the calls around a span of `call`, the nearest first."""
    above = (calls.get(span.span_id, call) for span in ancestors(one.span, enclosing))
    return [other for other in above if other is not call]


class MergedCells(NamedTuple):
    """The cells of `CALLS` with the source `MERGED`, and the token ids."""

    execution_id: str
    call_id: str
    trace_id: str
    parent_id: str | None
    start: int
    end: int
    name: str
    agent: str | None
    node: str | None
    policy_version: int | None
    params: str | None
    temperature: float | None
    input: str | None
    output: str | None
    arguments: str | None
    result: str | None
    requested_by: str | None
    redacted: bool
    truncated: bool
    capture_mismatch: str | None
    source_spans: list[str]
    token_source: str | None
    tokens: Tokens | None
    """Token ids as their writer encoded them."""


FIELDS = columns_from(CellSource.FIELD)
FIELD_NAMES = tuple(column.name for column in FIELDS)
DEFAULTS = tuple(column.default for column in FIELDS)
CELL_NAMES = (*FIELD_NAMES, *MergedCells._fields)
"""The names of the cells that depend on one call alone."""


def call_cells(call: Call) -> tuple[Any, ...]:
    """Return the cells of `CELL_NAMES`."""
    return (*field_cells(call.partial, FIELD_NAMES, DEFAULTS), *_merged_cells(call))


def field_cells(
    merged: Partial, names: Sequence[str], defaults: Sequence[object]
) -> Iterator[object]:
    """Yield the merged fields of these names, each with its default."""
    # in C: this is done for every call
    return map(cast(Mapping[str, object], merged).get, names, defaults)


def _merged_cells(call: Call) -> MergedCells:
    merged, outer = call.partial, call.span
    spans = [one.span for one in call.singles]
    trusted, tokens = _trusted_spans(spans), merged.get("tokens")
    params, version = merged.get("params"), merged.get("policy_version")
    input_text, output_text, arguments, result = _texts(merged)
    return MergedCells(
        execution_id=outer.execution_id,
        call_id=outer.span_id,
        trace_id=outer.trace_id,
        parent_id=call.parent_id,
        # of a log record only the end is known well
        start=min([span.start for span in spans]) if _is_record(outer) else outer.start,
        end=max([one.span.end for one in call.singles if not _is_untimed(one, call)]),
        name=_name(call),
        agent=call.agent,
        node=call.node,
        policy_version=version if version is None or abs(version) < 1 << 31 else None,
        params=None if params is None else params.text,
        temperature=None if params is None else params.temperature,
        input=input_text,
        output=output_text,
        arguments=arguments,
        result=result,
        requested_by=call.requested_by,
        redacted=any([span.flag(attributes.REDACTED) for span in trusted]) or _is_cut(call),
        truncated=any([span.flag(attributes.TRUNCATED) for span in trusted]),
        capture_mismatch=call.mismatch,
        source_spans=[span.span_id for span in spans],
        token_source=tokens and tokens.recorded_by,
        tokens=tokens,
    )


def _is_untimed(one: Call, call: Call) -> bool:
    """Return whether another span of the call has its times, and this one has not."""
    return one.partial.get("untimed", False) and not call.partial.get("untimed", False)


def _is_record(span: Span) -> bool:
    """Return whether a span was made of a log record."""
    return attributes.LOG_EVENT in span.attributes


def _is_cut(call: Call) -> bool:
    """Return whether the span of the call's messages was too large, so that texts were cut."""
    cut = [one.partial for one in call.singles if attributes.CUT in one.span.attributes]
    pairs = ((partial, name) for partial in cut for name in MESSAGE_FIELDS if name in partial)
    return any(partial[name] is call.partial[name] for partial, name in pairs)


def _name(call: Call) -> str:
    merged = call.partial
    if call.kind in ("llm", "embedding"):
        return merged.get("model") or call.span.name
    if call.kind == "agent":
        return merged.get("agent") or call.span.name
    return merged.get("name") or call.span.name


def _texts(merged: Partial) -> tuple[str | None, str | None, str | None, str | None]:
    """Return input, output, arguments and result; a tool's arguments are its input."""
    if merged["kind"] == "llm":
        prompt, answer = merged.get("input_messages"), merged.get("output_messages")
        answer_text = None if answer is None else answer.text
        return None if prompt is None else prompt.text, answer_text, None, None
    if merged["kind"] == "tool":
        arguments, result = merged.get("arguments"), merged.get("output")
        return arguments, result, arguments, result
    return merged.get("input"), merged.get("output"), None, None
