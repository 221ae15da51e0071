"""Errors of policies that a user can fix."""

from ltrain_instrument.errors import LtrainError


class BadModel(LtrainError, ValueError):
    """A directory has no complete model, or one that does not fit the policy."""


class UnknownVersion(LtrainError, LookupError):
    """The policy or the version does not exist."""


class PolicyExists(LtrainError, FileExistsError):
    """The policy was registered before from another model."""
