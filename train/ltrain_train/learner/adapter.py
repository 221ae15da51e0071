"""LoRA adapters in PEFT's layout: written as they are trained, and merged into their base."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ltrain_train.learner.weights import (
    DTYPE_NAMES,
    atomic_directory,
    copy_model_files,
    export_size,
    write_weights,
)
from ltrain_train.policy import (
    ADAPTER_CONFIG,
    ADAPTER_PARTS,
    ADAPTER_PREFIX,
    ADAPTER_WEIGHTS,
    check_adapter,
    read_adapter_config,
    read_config,
)

SAVED_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
"""The precision of a base, by the dtype in its config.json."""


def write_adapter(
    directory: Path, tensors: Iterable[tuple[str, torch.Tensor]], config: dict[str, Any]
) -> list[str]:
    """Write an adapter in the precision that it was trained in.

    Args:
        tensors: the matrices by PEFT's names.
        config: PEFT's configuration, as a dictionary.

    Returns:
        the names of the tensors with a number that is not finite.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
    save_file(plain, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(config, indent=2, sort_keys=True, default=_as_json)
    (directory / ADAPTER_CONFIG).write_text(text + "\n")
    return [name for name, tensor in plain.items() if not bool(tensor.isfinite().all())]


def merge_adapter(base: Path, adapter: Path, out: Path, dtype: str | None = None) -> None:
    """Write the full weights of a base with an adapter.

    The sum is computed in float32 and rounded once.

    Args:
        adapter: adapter of its weights.
        dtype: `bf16` or `fp32`; None: the base's precision.

    Raises:
        BadModel: when the adapter is of another base.
        DiskFull: when the disk has no room.
    """
    check_adapter(adapter, base)
    config = read_config(base)
    dtype = dtype or SAVED_DTYPES.get(str(config.get("dtype", config.get("torch_dtype"))), "fp32")
    with atomic_directory(out, "the merged version", export_size(base, dtype)) as draft:
        copy_model_files(base, draft, dtype)
        write_weights(draft, _merged_tensors(base, adapter), dtype=dtype, write=True)


def _merged_tensors(base: Path, adapter: Path) -> Iterator[tuple[str, torch.Tensor]]:
    scale = read_adapter_config(adapter).scale
    matrices = load_file(adapter / ADAPTER_WEIGHTS)
    for file in sorted(base.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118, it is no dictionary
                module = ADAPTER_PREFIX + name.removesuffix(".weight")
                weight = opened.get_tensor(name)
                if f"{module}.{ADAPTER_PARTS[0]}" in matrices:
                    down, up = (matrices[f"{module}.{part}"].float() for part in ADAPTER_PARTS)
                    weight = weight.float() + scale * (up @ down)
                yield name, weight


def _as_json(value: Any) -> Any:
    """Return a value of PEFT's configuration that JSON does not have: sets and enums."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
