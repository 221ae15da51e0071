"""A machine with GPUs as ltrain sees it: `nvidia-smi` on PATH and the metadata of torch."""

import os
from pathlib import Path

import pytest

H100 = "NVIDIA H100 80GB HBM3, 580.95.05, 80500, 81559"
"""A line of nvidia-smi's answer: name, driver, MiB of free memory, MiB of memory."""


def install_nvidia_smi(folder: Path, *lines: str, status: int = 0) -> Path:
    """Write a program in `folder`, for PATH, that prints these lines and exits with `status`."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    text = "\n".join(lines)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
    program.chmod(0o755)
    return folder


def use_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a folder first in PATH."""
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def install_torch(folder: Path, version: str) -> None:
    """Write the metadata of a torch of that version in `folder`, for Python's path."""
    metadata = folder / f"torch-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
