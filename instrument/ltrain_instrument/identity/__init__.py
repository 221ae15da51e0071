"""The run, task, rollout and attempt of a span."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
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
        AGENT_HEADER,
        ENVIRONMENT_VARIABLE,
        HELD_OUT_MODES,
        VARIABLES,
        Identity,
        Mode,
        SourceMode,
        TrainableMode,
        rollout_id,
    )

open_face(__name__)
