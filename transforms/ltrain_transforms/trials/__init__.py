"""The trial of a candidate beside the current version: difference, verdict and report."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.trials.confidence import ArmTotals, Difference, compare
    from ltrain_transforms.trials.report import deployment_report
    from ltrain_transforms.trials.stored import (
        CALL_FIGURES,
        FAILED_CALLS,
        OUTPUT_TOKENS,
        SECONDS,
        Metric,
        read_evidence,
        read_history,
        read_metrics,
    )
    from ltrain_transforms.trials.verdict import (
        SIGNS,
        Bounds,
        Decision,
        Guard,
        Verdict,
        decide,
        judge,
    )

open_face(__name__)
