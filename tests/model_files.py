"""Writes models that only their checks read: configuration, tokenizer, and weights of bytes."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path


def write_tensors(file: Path, shapes: Mapping[str, tuple[int, ...]], fill: int = 0) -> None:
    """Write a tensor of each shape; all bytes are `fill`."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes([fill]) * end)


def write_model_files(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], fill: int = 0
) -> Path:
    """Write a model directory with a tensor of each shape, and return it."""
    directory.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    write_tensors(directory / "model.safetensors", shapes, fill)
    return directory
