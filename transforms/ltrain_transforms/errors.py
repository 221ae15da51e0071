"""What a user can mend in a recipe, a rule or a store to be read."""

from ltrain_instrument.errors import LtrainError


class BadRecipe(LtrainError, ValueError):
    """A recipe that cannot be read; names the key, what was given and what is allowed."""


class BadRule(LtrainError, ValueError):
    """A reward rule whose SQL cannot be read or does not give what it must."""


class BadEstimator(LtrainError, ValueError):
    """A function registered as an estimator that does not give one finite number a row."""


class NothingToBuild(LtrainError, LookupError):
    """The store holds no execution that the recipe's source selects."""


class NoDataset(LtrainError, LookupError):
    """A folder that is not a dataset where one was named."""


class NothingToShow(LtrainError, LookupError):
    """An id that fits no dataset, policy, run or rollout, or more than one rollout."""
