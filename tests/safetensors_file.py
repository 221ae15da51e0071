"""Writes a safetensors file of bytes, without torch."""

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
