"""What a user can mend about policies."""

from ltrain_instrument.errors import LtrainError


class BadModel(LtrainError, ValueError):
    """A directory that does not hold a complete model, or not one that fits the policy."""


class UnknownVersion(LtrainError, LookupError):
    """A policy or a version that does not exist."""


class PolicyExists(LtrainError, FileExistsError):
    """A policy that was registered before, from another model."""
