"""Errors in a recipe, a rule, a store or a dataset that the user can fix."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ltrain_instrument.errors import LtrainError


class BadRecipe(LtrainError, ValueError):
    """A recipe that cannot be read; the message names the key, the value and what is allowed."""


class BadRule(LtrainError, ValueError):
    """A reward rule whose keys or SQL are invalid."""


class BadEstimator(LtrainError, ValueError):
    """A registered estimator that does not return one finite number for each row."""


class NothingToBuild(LtrainError, LookupError):
    """The store holds no execution that the recipe's source selects."""


class NoDataset(LtrainError, LookupError):
    """A folder that is not a dataset."""


class DamagedDataset(LtrainError, ValueError):
    """A file of a dataset is missing, or differs from the manifest."""


class DatasetExists(LtrainError, FileExistsError):
    """A folder holds another dataset than the one that would be written there."""


class Unwritable(LtrainError, OSError):
    """The output folder cannot be written, or its disk is full."""


class NoCluster(LtrainError, ConnectionError):
    """No Ray cluster answers at the address."""


class BadPolicyFile(LtrainError, ValueError):
    """The policy.json of a version cannot be read."""


class BadDeployment(LtrainError, ValueError):
    """A version cannot enter the stage that was requested."""


class NothingToShow(LtrainError, LookupError):
    """An id that matches no dataset, policy, run or rollout, or more than one rollout."""

    def __init__(self, message: str, near: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.near = tuple(near)
        """References to what may be meant."""


@contextmanager
def writing_output(name: str, out: Path) -> Iterator[None]:
    """Turn an `OSError` while `name` is written to `out` into `Unwritable`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, LtrainError):  # an error of the store: its message is complete
            raise
        raise Unwritable(
            f"{name} cannot be written to {out}: {error.strerror or error}. Free space or fix "
            "permissions there, or write to another folder."
        ) from error


class FilesExist(LtrainError, FileExistsError):
    """Files that a command would write are there already."""
