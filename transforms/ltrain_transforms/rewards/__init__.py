"""Evaluations and rules -> rewards: each contribution with the span that is its evidence."""

from ltrain_transforms.rewards.collect import (
    REASONS,
    apply_gates,
    execution_contributions,
    mark_withheld,
    outcomes,
    rewards,
    split_contributions,
    with_group_stats,
)
from ltrain_transforms.rewards.evaluations import read_evaluations
from ltrain_transforms.rewards.group_stats import from_rollout_rules, mark_gated
from ltrain_transforms.rewards.rule_contributions import CONTRIBUTIONS, is_call_rule, sql_inputs

__all__ = [
    "CONTRIBUTIONS",
    "REASONS",
    "apply_gates",
    "execution_contributions",
    "from_rollout_rules",
    "is_call_rule",
    "mark_gated",
    "mark_withheld",
    "outcomes",
    "read_evaluations",
    "rewards",
    "split_contributions",
    "sql_inputs",
    "with_group_stats",
]
