"""Two captures of one call, compared; where they disagree the most believed one's word counts."""

from collections.abc import Sequence

from ltrain_transforms.dialects.messages import Said
from ltrain_transforms.dialects.partial import Partial

PARTS = ("output", "tools")


def output_of(partial: Partial) -> Said | None:
    """Give text and tool requests in a form that compares; None where it says nothing."""
    held = partial.get("output_messages")
    return None if held is None else held.said


def differences(partials: Sequence[Partial], scopes: Sequence[str]) -> str | None:
    """Say what captures of one call disagree on: `output`, `tools`, `output,tools`, or None.

    Args:
        partials: what each span says, the one that is believed most last.
        scopes: the instrumentation of each; two spans of one are retries, not captures.
    """
    believed = output_of(partials[-1])
    if believed is None:
        return None
    others = [
        said
        for partial, scope in zip(partials, scopes, strict=True)
        if scope != scopes[-1] and partial.get("status") != "error"
        if (said := output_of(partial)) is not None and said != believed
    ]
    differ = [any(said[n] != believed[n] for said in others) for n in range(len(PARTS))]
    return ",".join(part for part, unlike in zip(PARTS, differ, strict=True) if unlike) or None
