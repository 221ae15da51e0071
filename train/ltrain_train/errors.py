"""What a user can mend in a run: a service that is away, a run that lacks what it needs."""

from ltrain_instrument.errors import LtrainError


class NotReachable(LtrainError, ConnectionError):
    """A store or gateway that does not answer."""


class NothingToTrain(LtrainError, LookupError):
    """A dataset without one row that the policy can learn from."""


class DiskFull(LtrainError, OSError):
    """A disk without room for what a run must write."""


class RunInUse(LtrainError, RuntimeError):
    """A run or a policy that another process works on."""


class StoreOfAnother(LtrainError, PermissionError):
    """A store on this machine that does not take the keys of this home."""


class BadRun(LtrainError, ValueError):
    """A run that lacks what it needs: tasks, an agent, a model."""
