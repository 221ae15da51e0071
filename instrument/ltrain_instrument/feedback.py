"""Feedback: a reward for an execution that another process ran, or that ended long ago.

It is an evaluation span like that of a reward inside the execution, and names its target: the
rollout's id in `ltrain.rollout.id`, the trace as its own trace id, or the session in
`gen_ai.conversation.id`.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, Self

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from ltrain_instrument import attributes
from ltrain_instrument.errors import BadReward
from ltrain_instrument.identity import Identity, context_with_identity, current_identity

TargetKind = Literal["rollout", "trace", "session"]
TARGET_KINDS: tuple[TargetKind, ...] = ("rollout", "trace", "session")

WITHDRAWN = "withdrawn"
"""The label of an evaluation that withdraws those before it, of the same name and target."""
MAX_SCORE = 1e100
"""Largest score that counts, of either sign: means and deviations of larger ones overflow."""

TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


def to_score(value: Any) -> float:
    """Return a number, such as a scalar of numpy, as a float.

    Raises:
        BadReward: when it is NaN, or beyond `MAX_SCORE`.
    """
    try:
        number = float(value)
    except OverflowError:  # an int
        number = math.inf
    if not abs(number) <= MAX_SCORE:  # no comparison with NaN is true
        limits = f"-{MAX_SCORE:g} to {MAX_SCORE:g}"
        raise BadReward(f"The reward {number:g} does not count. Pass a number from {limits}.")
    return number


@dataclass(frozen=True, slots=True)
class Target:
    """The execution that feedback judges as a whole."""

    kind: TargetKind
    id: str

    @classmethod
    def from_ids(cls, rollout: str | None, trace: str | None, session: str | None) -> Self | None:
        """Return the target of which an id is given, or None without an id.

        Raises:
            BadReward: several ids are given, the id is empty, or a trace's id is malformed.
        """
        ids = zip(TARGET_KINDS, (rollout, trace, session), strict=True)
        targets = [cls(kind, id) for kind, id in ids if id is not None]
        if len(targets) > 1:
            names = " and ".join(target.kind for target in targets)
            raise BadReward(f"Feedback has one target, not {names}. Pass one of them.")
        for target in targets:
            target._check()
        return targets[0] if targets else None

    def _check(self) -> None:
        if self.kind == "trace" and not TRACE_ID.fullmatch(self.id):
            raise BadReward(
                f"'{self.id[:80]}' is no trace id. Pass its 32 lower-case hexadecimal digits."
            )
        if not self.id.strip():
            raise BadReward(f"The id of the {self.kind} is empty. Pass the id that it was run as.")

    def attributes(self) -> dict[str, str]:
        """Return the attributes that name the target; a trace is named by the span's own trace."""
        names = {"rollout": attributes.ROLLOUT_ID, "session": attributes.CONVERSATION_ID}
        return {names[self.kind]: self.id} if self.kind in names else {}

    def parent_context(self) -> Context:
        """Return the context in which the evaluation span is started: in no rollout.

        A session belongs to the run of this process. The SDK takes a trace id from a parent only,
        so feedback on a trace names as its parent a span that does not exist.
        """
        run = current_identity().run if self.kind == "session" else None
        base = context_with_identity(Identity(run=run), Context())
        if self.kind != "trace":
            return base
        number = int(self.id, 16)
        parent = SpanContext(
            number,
            (number & (1 << 64) - 1) or 1,
            is_remote=True,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        return set_span_in_context(NonRecordingSpan(parent), base)
