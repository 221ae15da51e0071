"""Rewards -> advantages: across the executions of a group, and across the calls of an execution.

The outcome advantage is one value an execution, or one a part of it. The process advantage is a
call's return over the later calls, all agents' included, less the group's at the same agent's k-th
call. Step estimators add what a call was worth among calls in the same state. They are fused as
advantages with weights. All of it reads narrow frames of a whole wave: no text, no tokens.
"""

from ltrain_transforms.credit.fusion import transitions
from ltrain_transforms.credit.groups import REASONS, chosen
from ltrain_transforms.credit.narrowing import NARROW, narrow
from ltrain_transforms.credit.outcome import compared

__all__ = ["NARROW", "REASONS", "chosen", "compared", "narrow", "transitions"]
