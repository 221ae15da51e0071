"""`ltrain eval`: versions of a policy, scored on the same tasks and compared."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.evaluation.command import run_evaluation
    from ltrain_train.evaluation.comparison import Threshold
    from ltrain_train.evaluation.gate import examine, examine_locked
    from ltrain_train.evaluation.plan import EvaluationOptions

open_face(__name__)
