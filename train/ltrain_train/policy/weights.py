"""Checks of a model directory that read only the headers of its weight files, and its precision.

A policy server that loads an incomplete directory dies at its next request, so every version is
checked before it is published.
"""

import json
import re
from pathlib import Path
from typing import Any, Literal

from ltrain_train.errors import BadModel
from ltrain_train.gpu import CONTROL_DEVICE, is_usable
from ltrain_train.policy.tinker import is_elsewhere, read_tinker_weights
from ltrain_transforms.recipe import Train

MAX_HEADER_BYTES = 100_000_000
"""Maximum bytes of a header in the safetensors format."""
TIED = {"lm_head.weight"}
"""Tensors that a directory may omit, because they can be tied to the embedding."""

LAYOUT = "Name a directory in Hugging Face layout: config.json, tokenizer.json, *.safetensors."
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""The form of a model's name on the Hugging Face hub; it is also that of a path."""

Shape = tuple[int, ...]

CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names of the bfloat16 instructions in /proc/cpuinfo, on x86 and on ARM."""

VLLM_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
"""vLLM's name of each precision."""

DEAD_ZONES = {("bf16", True): 2e-4, ("bf16", False): 1e-4}
"""The dead zone of each precision of served weights, with and without a LoRA adapter: learning
rates at which rounding loses half or more of what 20 optimizer steps change. docs/learner.md has
the measurement."""


def dead_zone(dtype: str, *, lora: bool) -> float:
    """Return the learning rate at which the dead zone of served weights ends; 0: there is none."""
    return DEAD_ZONES.get((dtype, lora), 0.0)


def check_model(directory: Path) -> None:
    """Check that a directory is a complete model in Hugging Face layout."""
    if not directory.is_dir():
        raise BadModel(missing_model(directory))
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            raise BadModel(f"'{directory}' has no {name}. {LAYOUT}")
    read_tinker_weights(directory)
    if not is_elsewhere(directory):
        read_shapes(directory)


def missing_model(directory: Path) -> str:
    """Return the sentence on a model directory that does not exist, which may be a hub's name."""
    sentence = f"There is no model directory '{directory}'. {LAYOUT}"
    name, owner = "/".join(directory.parts[-2:]), directory.parent
    if not HUB_NAME.fullmatch(name) or owner.is_dir() or not owner.parent.is_dir():
        return sentence
    return (
        f"{sentence} If {name} is a name on the Hugging Face hub, which ltrain does not read, run "
        f"`hf download {name} --local-dir models/{directory.name}`, and name "
        f"models/{directory.name}."
    )


def check_same_tensors(directory: Path, reference: Path) -> None:
    """Check that the weights can replace those of `reference` in a running server."""
    shapes, expected = read_shapes(directory), read_shapes(reference)
    for name in sorted((shapes.keys() ^ expected.keys()) - TIED):
        problem = "lacks" if name in expected else "has an unknown"
        raise BadModel(f"'{directory}' {problem} tensor {name}, compared with '{reference}'.")
    for name in shapes.keys() & expected.keys():
        if shapes[name] != expected[name]:
            raise BadModel(
                f"'{directory}' has {name} of shape {list(shapes[name])}; "
                f"'{reference}' has {list(expected[name])}."
            )


def read_config(directory: Path) -> dict[str, Any]:
    """Return the config.json of the model in a directory."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


def text_config(directory: Path) -> dict[str, Any]:
    """Return the configuration of the model's language part, which may be all of it."""
    config = read_config(directory)
    return config.get("text_config") or config


def read_shapes(directory: Path) -> dict[str, Shape]:
    """Return the shape of every tensor in the directory's safetensors files, by name.

    Raises:
        BadModel: when there is no such file, or one is truncated.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise BadModel(
            f"'{directory}' has no weights: there is no *.safetensors file. Convert the model to "
            "safetensors."
        )
    shapes: dict[str, Shape] = {}
    for file in files:
        shapes |= _read_file_shapes(file)
    for name in _indexed_tensors(directory) - shapes.keys():
        raise BadModel(f"'{directory}' lacks {name}, which its model.safetensors.index.json lists.")
    return shapes


def read_entries(file: Path) -> dict[str, tuple[int, int]]:
    """Return the first byte of every tensor in a safetensors file, and the byte after its last."""
    length, header = _read_header(file)
    starts = {name: tensor["data_offsets"] for name, tensor in header.items()}
    return {name: (8 + length + start, 8 + length + end) for name, (start, end) in starts.items()}


def _read_file_shapes(file: Path) -> dict[str, Shape]:
    _, header = _read_header(file)
    return {name: tuple(tensor["shape"]) for name, tensor in header.items()}


def _read_header(file: Path) -> tuple[int, dict[str, Any]]:
    """Return the length of a complete safetensors file's header, and its tensors by name."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError("its header is too long")
            header: dict[str, Any] = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        size = file.stat().st_size
        if size != 8 + length + end:
            raise ValueError(f"it has {size} bytes, its header says {8 + length + end}")
        if not all(isinstance(tensor["shape"], list) for tensor in header.values()):
            raise ValueError("a shape in it is not a list")
        return length, header
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModel(f"'{file}' is not a complete safetensors file: {error}.") from error


def _indexed_tensors(directory: Path) -> set[str]:
    index = directory / "model.safetensors.index.json"
    return set(json.loads(index.read_text())["weight_map"]) if index.is_file() else set()


def fast_dtype(
    cpuinfo: Path = Path("/proc/cpuinfo"), control_device: Path = CONTROL_DEVICE
) -> Literal["bf16", "fp32"]:
    """Return the precision that `dtype = "auto"` stands for on this machine.

    On a CPU without bfloat16 instructions a matrix product in bfloat16 is about thirty times slower
    than in float32 (1.1 against 34 GFLOPS on two AVX2 cores).
    """
    if is_usable(control_device):
        return "bf16"
    try:
        flags = frozenset(cpuinfo.read_text().split())
    except OSError:
        return "fp32"
    return "bf16" if flags & CPU_FLAGS else "fp32"


def resolve_dtype(train: Train) -> Train:
    """Return the settings, with `dtype = "auto"` replaced by what it stands for on this machine."""
    return train.model_copy(update={"dtype": fast_dtype()}) if train.dtype == "auto" else train
