"""Writes model directories in Hugging Face layout, atomically.

Everything except weights and lineage is copied from the base model: configuration, tokenizer, chat
template and generation settings. Only the configuration's dtype is set to that of the weights.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ltrain_instrument.files import replace_directory
from ltrain_train.errors import DiskFull, DiskReadOnly, NotFinite, TooLittleMemory
from ltrain_train.policy import LINEAGE_FILES, read_config, text_config, weights_size
from ltrain_train.processes import (
    MIN_FREE,
    disk_error,
    disk_full_error,
    free_bytes,
    require_space,
)

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
DTYPE_NAMES = {"bf16": "bfloat16", "fp32": "float32"}
"""The dtype names in a model's config.json."""
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
"""Suffixes of the base's weight files, which are not copied."""
SHARD_BYTES = 4 << 30
"""Maximum bytes in one weight file."""


@contextmanager
def atomic_directory(directory: Path, what: str, size: int) -> Iterator[Path]:
    """Yield a draft directory that replaces `directory` when the block ends without an error.

    Args:
        what: what is written, for the error of a full or read-only disk.
        size: its approximate bytes.
    """
    require_space(directory, size, what)
    with (
        _explain_disk(directory, what, size),
        replace_directory(directory) as draft,
        _explain_disk(directory, what, size),
    ):
        yield draft


@contextmanager
def _explain_disk(directory: Path, what: str, size: int) -> Iterator[None]:
    try:
        yield
    except (DiskFull, DiskReadOnly):
        raise
    except Exception as error:  # torch and safetensors raise their own errors
        refused = disk_error(error, directory, what, size)
        if refused is None and free_bytes(directory) < MIN_FREE:
            refused = disk_full_error(directory, what, size)
        if refused is None:
            raise
        raise refused from error


def export_size(base: Path, dtype: str) -> int:
    """Return the approximate bytes of an export in `dtype` of the model in `base`."""
    return weights_size(base, DTYPES[dtype].itemsize)


def require_memory(what: str, size: int, free: int, remedy: str = "") -> None:
    """Check that `free` bytes of memory hold a further model."""
    if size > free:
        raise TooLittleMemory(
            f"{what} needs about {size / 1e9:.2f} GB beside the trained model, and "
            f"{free / 1e9:.2f} GB are free. Free memory{remedy}."
        )


def read_vocab_size(base: Path) -> int:
    """Return the number of token ids of the model in `base`."""
    return int(text_config(base)["vocab_size"])


def copy_model_files(base: Path, directory: Path, dtype: str) -> None:
    """Copy the files of `base` except weights and lineage, and set `dtype` in config.json."""
    for file in base.iterdir():
        is_weights = file.name.endswith(WEIGHT_SUFFIXES)
        if file.is_file() and not is_weights and file.name not in LINEAGE_FILES:
            # not `copy`: a version's files are read-only, and their modes would be copied too
            shutil.copyfile(file, directory / file.name)
    config = read_config(base)
    for key in ("dtype", "torch_dtype"):
        if key == "dtype" or key in config:
            config[key] = DTYPE_NAMES[dtype]
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_weights(
    directory: Path,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    dtype: str,
    write: bool,
    copy: bool = True,
) -> list[str]:
    """Write tensors as safetensors files of at most `SHARD_BYTES`, with an index if several.

    `tensors` is consumed even if `write` is False, because every rank takes part in gathering a
    tensor. An output layer that is tied to the embedding is omitted, as in Hugging Face. Without
    `copy` the tensors do not change until they are written.

    Returns:
        the names of the written tensors with a number that is not finite.
    """
    bad: list[str] = []
    omitted = omitted_tensors(directory)
    shards = Shards(directory)
    for name, tensor in tensors:
        if write and name not in omitted:
            rounded = tensor.detach().to("cpu", DTYPES[dtype], copy=copy).contiguous()
            shards.add(name, rounded)
            if not bool(rounded.isfinite().all()):
                bad.append(name)
    if write:
        shards.finish()
    return bad


def omitted_tensors(base: Path) -> set[str]:
    """Return the tensors of a model that its files omit: a tied output layer."""
    tied = read_config(base).get("tie_word_embeddings", False)
    return {"lm_head.weight"} if tied else set()


class Shards:
    """Writes the weight files of one directory, with at most one file's tensors in memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: list[list[str]] = []
        self.pending: dict[str, torch.Tensor] = {}
        self.total = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor, after writing a file if it would become too large."""
        if (
            self.pending
            and sum(t.nbytes for t in self.pending.values()) + tensor.nbytes > SHARD_BYTES
        ):
            self._save()
        self.pending[name] = tensor
        self.total += tensor.nbytes

    def finish(self) -> None:
        """Write the last file, rename the files and, if there are several, write the index."""
        self._save()
        count = len(self.names)
        if count == 1:
            self._part_file(0).rename(self.directory / "model.safetensors")
            return
        files = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        for i, file in enumerate(files):
            self._part_file(i).rename(self.directory / file)
        weight_map = {
            name: file for file, names in zip(files, self.names, strict=True) for name in names
        }
        index = {"metadata": {"total_size": self.total}, "weight_map": weight_map}
        text = json.dumps(index, indent=2, sort_keys=True)
        (self.directory / "model.safetensors.index.json").write_text(text + "\n")

    def _save(self) -> None:
        save_file(self.pending, self._part_file(len(self.names)), metadata={"format": "pt"})
        self.names.append(list(self.pending))
        self.pending = {}

    def _part_file(self, number: int) -> Path:
        return self.directory / f"part-{number}.safetensors"


def largest_difference(first: Path, second: Path) -> float:
    """Return the largest difference between the numbers of two models or adapters of one shape."""
    largest = 0.0
    for file in sorted(first.glob("*.safetensors")):
        with (
            safe_open(file, framework="pt") as one,
            safe_open(second / file.name, framework="pt") as other,
        ):
            for name in one.keys():  # noqa: SIM118, it is no dictionary
                difference = one.get_tensor(name).float() - other.get_tensor(name).float()
                largest = max(largest, float(difference.abs().max()))
    return largest


def require_finite(bad: list[str], directory: Path) -> None:
    """Check that all written tensors are finite."""
    if bad:
        raise NotFinite(
            f"The policy was not written to {directory}: {len(bad)} of its tensors have numbers "
            f"that are not finite, {bad[0]} for example. Continue from a checkpoint, with a lower "
            "train.learning_rate."
        )
