"""What a user can mend in a recipe, a rule or a store to be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


class Unwritable(LtrainError, OSError):
    """A place that `--out` names and that cannot be written, or whose disk is full."""


class NoCluster(LtrainError, ConnectionError):
    """An address where no Ray cluster answers."""


class NothingToShow(LtrainError, LookupError):
    """An id that fits no dataset, policy, run or rollout, or more than one rollout."""


@contextmanager
def writing_output(what: str, out: Path) -> Iterator[None]:
    """Say of `what` that it cannot be written to `out`, where the system says so.

    Raises:
        Unwritable: which says why.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, LtrainError):  # the store's: a sentence already
            raise
        raise Unwritable(
            f"{what} cannot be written to {out}: {error.strerror or error}. Make room there, or "
            "name another place with --out."
        ) from error
