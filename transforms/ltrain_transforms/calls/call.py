"""A call as one or several spans describe it, and the fields by which calls are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ltrain_instrument.attributes import LOG_EVENT
from ltrain_transforms.dialects import ComparableOutput, Partial
from ltrain_transforms.traces import Span, ToolRequest, tool_requests

SLACK = 2_000_000
"""Nanoseconds by which an inner span may outlast the outer one: LangChain's tracer stores times as
floats, and ends its span before the SDK closes its own."""

LOG_DELAY = 5_000_000_000
"""Nanoseconds after a call within which a client writes its log record, and takes the record's time
for the end of the call."""


def overlap(one: Span, other: Span) -> bool:
    """Return whether two spans overlap in time; that of a log record may begin after the call."""
    late = LOG_DELAY if LOG_EVENT in one.attributes or LOG_EVENT in other.attributes else 0
    return one.start <= other.end + late and other.start <= one.end + late


@dataclass(slots=True, eq=False)
class Call:
    """A call as one span describes it, or as its merged spans do."""

    span: Span
    """The outermost span."""
    partial: Partial
    parts: Sequence["Call"] = ()
    """The calls of the single spans, outermost first; empty for a call of one span."""
    mismatch: str | None = None
    """The fields in which its captures differ: see `merging.compare_captures`."""
    requested_by: str | None = None
    parent_id: str | None = None
    agent: str | None = None
    node: str | None = None

    @property
    def call_id(self) -> str:
        return self.span.span_id

    @property
    def kind(self) -> str:
        return self.partial["kind"]

    @property
    def singles(self) -> Sequence["Call"]:
        """The calls of its single spans, outermost first."""
        return self.parts or (self,)


def comparable_output(partial: Partial) -> ComparableOutput | None:
    """Return text and tool requests in a comparable form; None where there are neither."""
    messages = None if partial.get("excerpt") else partial.get("output_messages")
    return None if messages is None else messages.comparable


def have_same_output(one: Partial, other: Partial) -> bool:
    """Return whether two spans have an output and it is the same.

    A framework that cannot parse the arguments of a tool call may record the call without them.
    """
    output = comparable_output(one)
    if output is None or (answer := comparable_output(other)) is None:
        return False
    if output == answer:
        return True
    if output[0] != answer[0] or len(output[1]) != len(answer[1]):
        return False
    requests = (tool_requests(each["output_messages"].messages) for each in (one, other))
    return all(map(_are_one_request, *requests))


def _are_one_request(one: ToolRequest, other: ToolRequest) -> bool:
    """Return whether two records of a tool call differ at most by arguments that are no object.

    Some servers count their ids, so an equal id is not enough.
    """
    if one.name != other.name or one.id != other.id or not one.id:
        return False
    few, more = sorted((one.parsed_arguments or {}, other.parsed_arguments or {}), key=bool)
    return few == more or (not few and not isinstance(more, dict))


def last_input(partial: Partial) -> str | None:
    """Return text and tool results of a prompt's last message; None where there are neither.

    Instrumentations differ in what they record of the messages before it.
    """
    messages = partial.get("input_messages")
    spoken = [one for one in messages.messages if one.role != "system"] if messages else []
    if not spoken:
        return None
    results = [result.text for result in spoken[-1].tool_results]
    return "\n".join([spoken[-1].text, *results]).strip() or None


def ancestors(span: Span, enclosing: Mapping[str, Span]) -> Iterator[Span]:
    """Yield the ancestors of `span`, the nearest first; a cycle of invalid ids ends the loop."""
    visited = {span.span_id}
    above = enclosing.get(span.parent_id or "")
    while above is not None and above.span_id not in visited:
        yield above
        visited.add(above.span_id)
        above = enclosing.get(above.parent_id or "")
