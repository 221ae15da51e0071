"""Compare the captures of one call; where they differ, the one with the highest priority counts."""

from collections.abc import Sequence

from ltrain_transforms.dialects import ComparableOutput, Partial

COMPARED = ("output", "tools")


def comparable_output(partial: Partial) -> ComparableOutput | None:
    """Return text and tool requests in a comparable form; None where there are neither."""
    messages = partial.get("output_messages")
    return None if messages is None else messages.comparable


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
