"""Which run, task, rollout and attempt a span belongs to."""

from ltrain_instrument.identity.context import (
    IdentityScope,
    context_with_identity,
    current_identity,
    enter_identity,
    exit_identity,
    identity_from_context,
    use_context,
)
from ltrain_instrument.identity.rollout_identity import (
    VARIABLES,
    Identity,
    Mode,
    SourceMode,
    rollout_id,
)

__all__ = [
    "VARIABLES",
    "Identity",
    "IdentityScope",
    "Mode",
    "SourceMode",
    "context_with_identity",
    "current_identity",
    "enter_identity",
    "exit_identity",
    "identity_from_context",
    "rollout_id",
    "use_context",
]
