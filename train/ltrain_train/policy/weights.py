"""Whether a directory of weights can be loaded, from the headers of its files alone.

A policy server that is told to load an incomplete directory dies at its next request, so every
version is checked before it is announced.
"""

import json
from pathlib import Path

from ltrain_train.policy.errors import BadModel

LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format."""
TIED = {"lm_head.weight"}
"""Saved or left out where it is the embedding itself."""

Shape = tuple[int, ...]


def check_model(directory: Path) -> None:
    """Accept a directory in Hugging Face layout.

    Raises:
        BadModel: when it is none.
    """
    layout = "Give a directory in Hugging Face layout: config.json, tokenizer.json, *.safetensors."
    if not directory.is_dir():
        raise BadModel(f"There is no model directory '{directory}'. {layout}")
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            raise BadModel(f"'{directory}' has no {name}. {layout}")
    shapes(directory)


def check_same_tensors(directory: Path, like: Path) -> None:
    """Accept weights that can replace those of `like` in a running server.

    Raises:
        BadModel: when a tensor is missing, unknown or of another shape.
    """
    given, wanted = shapes(directory), shapes(like)
    for name in sorted((given.keys() ^ wanted.keys()) - TIED):
        problem = "lacks" if name in wanted else "has an unknown"
        raise BadModel(f"'{directory}' {problem} tensor {name}, compared with '{like}'.")
    for name in given.keys() & wanted.keys():
        if given[name] != wanted[name]:
            raise BadModel(
                f"'{directory}' has {name} of shape {list(given[name])}; "
                f"'{like}' has {list(wanted[name])}."
            )


def shapes(directory: Path) -> dict[str, Shape]:
    """Give the shape of every tensor in the directory's safetensors files.

    Raises:
        BadModel: when there is no such file, or one is cut off.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise BadModel(f"'{directory}' has no *.safetensors file: it holds no weights.")
    found: dict[str, Shape] = {}
    for file in files:
        found |= _shapes(file)
    for name in _indexed(directory) - found.keys():
        raise BadModel(f"'{directory}' lacks {name}, which its model.safetensors.index.json lists.")
    return found


def _shapes(file: Path) -> dict[str, Shape]:
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > LONGEST_HEADER:
                raise ValueError("its header is too long")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        size = file.stat().st_size
        if size != 8 + length + end:
            raise ValueError(f"it has {size} bytes, its header says {8 + length + end}")
        return {name: tuple(tensor["shape"]) for name, tensor in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModel(f"'{file}' is not a complete safetensors file: {error}.") from error


def _indexed(directory: Path) -> set[str]:
    index = directory / "model.safetensors.index.json"
    return set(json.loads(index.read_text())["weight_map"]) if index.is_file() else set()
