"""Rewards -> advantages: across the executions of a group, and across the calls of an execution.

The outcome advantage is one value an execution, or one a part of it. The process advantage is a
call's return over the later calls of all agents, less the group's mean at the same turn of the same
agent. Step estimators add the advantage of a call among calls in the same state. The three are
fused with weights. Every function here reads narrow frames of a whole wave: no text and no tokens.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.credit.fusion import transitions
    from ltrain_transforms.credit.groups import REASONS, select_groups
    from ltrain_transforms.credit.inputs import CREDIT_INPUTS, credit_inputs
    from ltrain_transforms.credit.outcome import outcome_advantages

open_face(__name__)
