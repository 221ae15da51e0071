"""The backend tinker: a LoRA adapter that a server of the Tinker API trains.

Only this folder uses the training side of the Tinker SDK. It needs neither verl nor a GPU, except
for the losses that the API lacks, which are verl's.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.learner.tinker_backend.backend import (
        describe_error,
        environment,
        start,
        stop,
    )

open_face(__name__)
