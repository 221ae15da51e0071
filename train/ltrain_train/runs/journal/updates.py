"""The updates of an offline run on disk: the figures that its alarms compare.

An update trains on executions that ended up to then. Its figures are of those that ended after the
update before, because a dataset of later updates may have the same executions again.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ltrain_instrument.files import write_file
from ltrain_train.errors import BadJournal, describe_fault
from ltrain_transforms.alarms import WaveFigures

FILE = "updates.json"


class TrainedUpdate(BaseModel):
    """One update of a policy."""

    model_config = ConfigDict(frozen=True)

    until: int
    """The end of its last execution, in ns since the epoch."""
    figures: WaveFigures
    """Its row; the number of the new version stands for that of a wave."""


_UPDATES = TypeAdapter(tuple[TrainedUpdate, ...])


def read_updates(folder: Path) -> tuple[TrainedUpdate, ...]:
    """Return the updates of the run in `folder`, oldest first.

    Raises:
        BadJournal: when they cannot be read.
    """
    file = folder / FILE
    try:
        return _UPDATES.validate_json(file.read_bytes())
    except FileNotFoundError:
        return ()
    except ValidationError as error:
        raise BadJournal(
            f"{file} cannot be read: {describe_fault(error)}. Move it away: the next update is "
            "then the first that alarms compare."
        ) from error


def write_updates(folder: Path, updates: Sequence[TrainedUpdate]) -> None:
    """Replace the updates of the run in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / FILE, _UPDATES.dump_json(tuple(updates)))
