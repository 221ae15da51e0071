"""`tinker.json`: where a Tinker server has the weights of a version.

The file is part of the artifact. Beside an adapter it names the server's copy of the adapter. In a
model directory it takes the place of the weight files, which this machine does not need then.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ltrain_train.errors import BadModel, describe_fault
from ltrain_transforms.policy_file import TINKER_FILE

PATH = r"^tinker://\S+$"
"""The form of the path of weights at a Tinker server."""


class TinkerWeights(BaseModel):
    """The contents of `tinker.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str = Field(min_length=1)
    """Name of the base model at the server, such as `Qwen/Qwen3-8B`."""
    sampler: str | None = Field(default=None, pattern=PATH)
    """Path of the weights that are sampled; None: those of the base model."""
    state: str | None = Field(default=None, pattern=PATH)
    """Path of the weights and the optimizer's state, from which training continues."""

    def write(self, directory: Path) -> None:
        """Write the file into the directory of an artifact."""
        text = self.model_dump_json(indent=1, exclude_none=True)
        (directory / TINKER_FILE).write_text(f"{text}\n")


def read_tinker_weights(directory: Path) -> TinkerWeights | None:
    """Return the contents of the `tinker.json` in a directory; None if there is none.

    Raises:
        BadModel: when the file is damaged.
    """
    file = directory / TINKER_FILE
    try:
        return TinkerWeights.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise BadModel(
            f"'{file}': {describe_fault(error)}. It names the base model of the Tinker server as "
            '{"base_model": "Qwen/Qwen3-8B"}, and of an adapter also its `sampler`, a path that '
            "begins with tinker://."
        ) from error


def is_elsewhere(directory: Path) -> bool:
    """Return whether a Tinker server alone has the full weights of a model directory."""
    return (directory / TINKER_FILE).is_file() and not any(directory.glob("*.safetensors"))
