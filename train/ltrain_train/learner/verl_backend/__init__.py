"""The backend verl: optimizer steps with its FSDP2 engine, on a CPU or on the GPUs of a cluster.

Only this folder uses verl, Ray and tensordict.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.learner.verl_backend.backend import describe_error, environment, start, stop

open_face(__name__)
