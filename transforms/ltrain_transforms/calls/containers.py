"""LLM spans that enclose several LLM calls: each describes an agent or a node, not a call.

Some instrumentations write a model's attributes on the span of a whole agent (google-adk). A span
that is named as an agent's is one, if a call is inside. In another span, two calls are different
ones if no retry explains them:

* both succeeded, and one instrumentation recorded them side by side, or one began after the other
  had ended;
* one instrumentation recorded different inputs.

The gateway and captures record each HTTP request, so their spans with equal inputs are retries.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ltrain_transforms.calls.call import SLACK, Call, ancestors, comparable_output, last_input
from ltrain_transforms.dialects import Partial
from ltrain_transforms.traces import Span, messages_text

AGENT_SPAN = "invoke_agent "
"""The beginning of an agent's span name in the gen_ai conventions; the agent's name follows."""

KEPT_FIELDS = ("agent", "node", "version", "endpoint", "status", "error_type")
"""Fields of an LLM span that hold for the agent or node that it is."""


def as_containers(enclosing: Mapping[str, Span], described: Sequence[Call]) -> list[Call]:
    """Return the spans; LLM spans around several calls describe an agent or a node.

    Args:
        enclosing: every span of the execution, by id.
    """
    by_id = {one.span.span_id: one for one in described}
    inside: defaultdict[str, list[Call]] = defaultdict(list)
    apart: defaultdict[str, list[Call]] = defaultdict(list)
    for one in described:
        if one.partial["kind"] == "llm":
            _assign_to_outer(one, enclosing, by_id, inside, apart)
    return [
        _container(one)
        if not one.partial.get("measured")
        and not one.partial.get("tokens")
        and _is_container(one, inside[one.span.span_id], apart[one.span.span_id])
        else one
        for one in described
    ]


def _assign_to_outer(
    one: Call,
    enclosing: Mapping[str, Span],
    by_id: Mapping[str, Call],
    inside: Mapping[str, list[Call]],
    apart: Mapping[str, list[Call]],
) -> None:
    """Add `one` to the calls of its nearest LLM ancestor: `apart` where a call is between."""
    direct = True
    for ancestor in ancestors(one.span, enclosing):
        outer = by_id.get(ancestor.span_id)
        if outer is None:
            continue
        if outer.partial["kind"] == "llm":
            (inside if direct else apart)[ancestor.span_id].append(one)
            return
        direct = False


def _is_container(outer: Call, inside: Sequence[Call], apart: Sequence[Call]) -> bool:
    if not inside and not apart:
        return False
    if _are_several(inside) or (inside and outer.span.name.startswith(AGENT_SPAN)):
        return True
    # a stream's span may stay current while the agent goes on, so calls further inside count only
    # where the outer span repeats the answer of one of them
    output = comparable_output(outer.partial)
    repeats = output is not None and any(output == comparable_output(o.partial) for o in apart)
    return repeats and _are_several([*inside, *apart])


def _are_several(calls: Sequence[Call]) -> bool:
    """Return whether spans with one LLM ancestor are different calls, not retries or duplicates."""
    if len(calls) < 2:
        return False
    by_scope: defaultdict[str, list[Call]] = defaultdict(list)
    for one in calls:
        by_scope[one.span.scope].append(one)
    recorded = [one for one in calls if _succeeded(one) and not one.partial.get("measured")]
    most = Counter(one.span.scope for one in recorded).most_common(1)
    return (
        bool(most and most[0][1] > 1)
        or any(_have_different_inputs(members) for members in by_scope.values())
        or _follow_each_other(recorded)
    )


def _succeeded(one: Call) -> bool:
    return one.partial.get("status") != "error"


def _have_different_inputs(calls: Sequence[Call]) -> bool:
    return len({last_input(one.partial) for one in calls} - {None}) > 1


def _follow_each_other(calls: Sequence[Call]) -> bool:
    """Return whether one of these spans of a process began after others had ended."""
    ends: dict[str | None, int] = {}
    for one in sorted(calls, key=lambda one: one.span.start):
        span = one.span
        slack = min(SLACK, (span.end - span.start) // 2)  # two records of a short call overlap
        if span.process in ends and span.start >= ends[span.process] - slack:
            return True
        ends[span.process] = max(ends.get(span.process, 0), span.end)
    return False


def _container(one: Call) -> Call:
    """Return the span as that of an agent if it names one, else as that of a node."""
    partial = one.partial
    container: Partial = {"kind": "node"}
    container |= {name: partial[name] for name in KEPT_FIELDS if name in partial}  # type: ignore
    if one.span.name.startswith(AGENT_SPAN):
        container["agent"] = one.span.name.removeprefix(AGENT_SPAN)
    if "agent" in container:
        container["kind"] = "agent"
    prompt, answer = partial.get("input_messages"), partial.get("output_messages")
    questions = [m.text for m in prompt.messages if m.role == "user" and m.text] if prompt else []
    if questions:
        container["input"] = questions[-1]
    # of a stream google-adk writes each chunk as a message, then the whole answer
    texts = [messages_text([message]) for message in answer.messages] if answer else []
    if answers := [text for text in texts if text]:
        container["output"] = answers[-1]
    return Call(one.span, container)
