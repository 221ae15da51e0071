"""Evaluations and rules -> rewards: each contribution with the span that is its evidence."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.rewards.collect import (
        REASONS,
        apply_gates,
        execution_contributions,
        group_contributions,
        is_judged,
        outcomes,
        rewards,
        rule_inputs,
        split_contributions,
        with_group_stats,
    )
    from ltrain_transforms.rewards.evaluations import explained_scores, read_evaluations
    from ltrain_transforms.rewards.group_stats import mark_gated
    from ltrain_transforms.rewards.kinds import rules_of
    from ltrain_transforms.rewards.rule import (
        CONTRIBUTIONS,
        NullPredicates,
        Rule,
        RuleInputs,
        TraceCounts,
    )

open_face(__name__)
