"""Damage to the content of a file, as a disk, a copy or a hand does it."""

from collections.abc import Callable
from pathlib import Path

Damage = Callable[[bytes], bytes]


def flip_a_bit(content: bytes) -> bytes:
    """Return the content with another bit in its middle."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def cut_in_half(content: bytes) -> bytes:
    """Return the first half of the content."""
    return content[: len(content) // 2]


def damage_file(file: Path, damage: Damage) -> None:
    """Damage a file, which may be read-only."""
    content = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(damage(content))
