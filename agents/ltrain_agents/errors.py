"""The errors of agents and environments."""

from ltrain_instrument.errors import LtrainError


class BadEnvironment(LtrainError, ValueError):
    """An environment returned what its interface does not allow."""
