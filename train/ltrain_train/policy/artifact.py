"""The kinds of a version: full weights, a LoRA adapter in PEFT's layout, or a prompt.

Each kind has its check, which reads only configurations and the headers of weight files.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ltrain_instrument.prompts import PROMPT_FILE
from ltrain_train.errors import BadModel, describe_fault
from ltrain_train.policy.manifest import artifact_files
from ltrain_train.policy.tinker import is_elsewhere, read_tinker_weights
from ltrain_train.policy.weights import Shape, check_model, check_same_tensors, read_shapes
from ltrain_transforms.artifacts import Artifact

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_PREFIX = "base_model.model."
"""The prefix that PEFT gives the name of each adapted module."""
ADAPTER_PARTS = ("lora_A.weight", "lora_B.weight")
"""The two matrices of an adapted module: [rank, inputs] and [outputs, rank]."""


class AdapterConfig(BaseModel):
    """The keys of `adapter_config.json` that a server and a merge read; other adapters fail."""

    model_config = ConfigDict(frozen=True)

    peft_type: Literal["LORA"]
    r: int = Field(ge=1)
    lora_alpha: float = Field(gt=0)
    use_rslora: bool = False
    bias: Literal["none"] = "none"
    use_dora: Literal[False] = False
    fan_in_fan_out: Literal[False] = False
    modules_to_save: None = None
    rank_pattern: dict[str, int] = Field(default_factory=dict, max_length=0)
    alpha_pattern: dict[str, float] = Field(default_factory=dict, max_length=0)

    @property
    def scale(self) -> float:
        """The factor of the product of an adapter's matrices."""
        return self.lora_alpha / (self.r**0.5 if self.use_rslora else self.r)


def find_artifact(source: Path) -> Artifact:
    """Return the kind of the artifact in a directory, by its files; a file is a prompt."""
    if (source / ADAPTER_CONFIG).is_file():
        return "adapter"
    return "prompt" if source.is_file() or (source / PROMPT_FILE).is_file() else "weights"


def source_files(source: Path) -> dict[str, Path]:
    """Return the files of an artifact by the names that a version stores them under."""
    if source.is_file():
        return {PROMPT_FILE: source}
    return {file.name: file for file in artifact_files(source)}


def check_artifact(source: Path, base: Path | None) -> None:
    """Check that an artifact is complete and fits the weights of `base`.

    Args:
        source: the directory of the artifact, or the file of a prompt.
        base: the weights that it replaces or is added to; None: it is the first version.
    """
    artifact = find_artifact(source)
    if base is not None and (artifact == "prompt") != (find_artifact(base) == "prompt"):
        raise BadModel(
            f"'{source}' is {artifact}, and the policy's other versions are not: the versions "
            "of a policy are either prompts, or weights and their adapters. Use another policy."
        )
    if artifact == "prompt":
        read_prompt(source if source.is_file() else source / PROMPT_FILE)
    elif artifact == "adapter":
        check_adapter(source, base)
    else:
        check_model(source)
        if base is not None and not is_elsewhere(base):
            check_same_tensors(source, base)


def read_prompt(file: Path) -> str:
    """Return the text of a prompt."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadModel(f"'{file}' cannot be read as UTF-8: {error}.") from error
    if not text.strip():
        raise BadModel(f"'{file}' is empty. Write the prompt into it.")
    return text


def read_adapter_config(directory: Path) -> AdapterConfig:
    """Return the configuration of an adapter.

    Raises:
        BadModel: when it cannot be read, or is of another kind than plain LoRA.
    """
    file = directory / ADAPTER_CONFIG
    try:
        return AdapterConfig.model_validate_json(file.read_bytes())
    except OSError as error:
        raise BadModel(f"'{file}' cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise BadModel(
            f"'{file}': {describe_fault(error)}. Plain LoRA adapters can be served: one rank for "
            "all modules, no DoRA, no biases, no saved modules."
        ) from error


def check_adapter(directory: Path, base: Path | None) -> None:
    """Check that an adapter is complete, and fits the tensors of the weights in `base`.

    The tensors of a base that only a Tinker server has are not known.

    Raises:
        BadModel: when it does not.
    """
    if base is None:
        raise BadModel(
            f"'{directory}' is an adapter, which needs the weights that it is added to. Register "
            "the model as version 0 first."
        )
    rank = read_adapter_config(directory).r
    modules = adapted_modules(directory)
    read_tinker_weights(directory)
    if is_elsewhere(base):
        return
    weights = read_shapes(base)
    for name, (down, up) in modules.items():
        weight = weights.get(f"{name}.weight")
        if weight is None:
            raise BadModel(f"'{directory}' adapts {name}, which '{base}' does not have.")
        if len(weight) != 2:
            raise BadModel(f"'{directory}' adapts {name}, which is no matrix in '{base}'.")
        if (down, up) != ((rank, weight[1]), (weight[0], rank)):
            raise BadModel(
                f"'{directory}' has matrices of shape {list(down)} and {list(up)} for {name}. With "
                f"rank {rank} and the base '{base}' they must be {[rank, weight[1]]} and "
                f"{[weight[0], rank]}: it is an adapter of another base or rank."
            )


def adapted_modules(directory: Path) -> dict[str, tuple[Shape, Shape]]:
    """Return the shapes of both matrices of each adapted module, by the module's name.

    Raises:
        BadModel: when the file has other tensors, or lacks one of the two matrices.
    """
    shapes = read_shapes(directory)
    names = (name.removeprefix(ADAPTER_PREFIX).rsplit(".lora_", 1)[0] for name in shapes)
    modules = dict.fromkeys(names)  # in the order of the file
    expected = {
        name: tuple(f"{ADAPTER_PREFIX}{name}.{part}" for part in ADAPTER_PARTS) for name in modules
    }
    known = {tensor for names in expected.values() for tensor in names}
    for tensor in sorted(known ^ shapes.keys()):
        problem = "lacks" if tensor in known else "has an unknown"
        raise BadModel(f"'{directory / ADAPTER_WEIGHTS}' {problem} tensor {tensor}.")
    return {name: (shapes[down], shapes[up]) for name, (down, up) in expected.items()}
