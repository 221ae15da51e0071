"""The trial of a candidate beside the current version: their difference, and the verdict."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.trials.confidence import ArmTotals, Difference, compare
    from ltrain_transforms.trials.stored import FAILED_CALLS, SECONDS, Metric, read_metrics
    from ltrain_transforms.trials.verdict import Bounds, Decision, Guard, Verdict, decide

open_face(__name__)
