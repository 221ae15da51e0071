"""Training from Python and notebooks: `ltrain.train`."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.session.train import TrainedRun, train

open_face(__name__)
