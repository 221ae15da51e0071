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
    HELD_OUT_MODES,
    VARIABLES,
    Identity,
    Mode,
    SourceMode,
    TrainableMode,
    rollout_id,
)

__all__ = [
    "HELD_OUT_MODES",
    "VARIABLES",
    "Identity",
    "IdentityScope",
    "Mode",
    "SourceMode",
    "TrainableMode",
    "context_with_identity",
    "current_identity",
    "enter_identity",
    "exit_identity",
    "identity_from_context",
    "rollout_id",
    "use_context",
]
