"""Training from Python and notebooks: `ltrain.train`."""

from ltrain_train.session.train import TrainedRun, train

__all__ = ["TrainedRun", "train"]
