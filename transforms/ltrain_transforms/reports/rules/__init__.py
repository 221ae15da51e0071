"""Rules on stored executions: how often each fires, what it gives, and which could be added."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.reports.rules.comparison import rules_comparison
    from ltrain_transforms.reports.rules.report import (
        RulesReport,
        render_report,
        report_rules,
        report_statistics,
    )
    from ltrain_transforms.reports.rules.suggestions import render_suggestions, suggest_rules
    from ltrain_transforms.reports.rules.tally import RuleStatistics, read_batches

open_face(__name__)
