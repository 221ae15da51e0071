"""Errors of a run that a user can fix: an unreachable service, a full disk, missing tasks."""

from ltrain_instrument.errors import LtrainError


class NotReachable(LtrainError, ConnectionError):
    """A store or a gateway does not answer."""


class NothingToTrain(LtrainError, LookupError):
    """A dataset has no row that the policy can be trained on."""


class DiskFull(LtrainError, OSError):
    """The disk has no room for what a run must write."""


class RunInUse(LtrainError, RuntimeError):
    """Another process works on the run or the policy."""


class ForeignStore(LtrainError, PermissionError):
    """The collector on this machine belongs to another home and refuses this home's keys."""


class BadRun(LtrainError, ValueError):
    """A run lacks something that it needs, such as tasks, an agent or a model."""
