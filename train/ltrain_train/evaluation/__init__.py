"""`ltrain eval`: versions of a policy, scored on the same tasks and compared."""

from ltrain_train.evaluation.command import run_evaluation
from ltrain_train.evaluation.comparison import Threshold
from ltrain_train.evaluation.plan import EvaluationOptions

__all__ = ["EvaluationOptions", "Threshold", "run_evaluation"]
