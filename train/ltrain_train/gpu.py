"""The NVIDIA GPUs of this machine, and whether the installed torch can compute on them.

Importing torch takes seconds, so nothing here does: a device file shows that there is a GPU,
`nvidia-smi` describes it, and the version of the package torch names its build.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ltrain_instrument.errors import LtrainError

CONTROL_DEVICE = Path("/dev/nvidiactl")
"""Exists if NVIDIA's driver is loaded and this process may use a GPU."""
QUERY = (
    "--query-gpu=name,driver_version,memory.free,memory.total",
    "--format=csv,noheader,nounits",
)
TIMEOUT = 10.0
"""Seconds for nvidia-smi to answer; without its persistence mode it takes up to three."""
INSTALL = "Move .venv and .venv-vllm away, and run: make setup DEVICE=cuda"
"""The fix for a GPU that the installed torch does not support."""

DRIVER = "Update NVIDIA's driver: the locked torch is built for CUDA 13, which needs 580 or newer."
"""The fix for a torch that is built for GPUs and cannot use one."""


class NvidiaSmiFailed(LtrainError, RuntimeError):
    """nvidia-smi is installed, but it cannot describe the GPUs."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as `nvidia-smi` describes it."""

    name: str
    driver: str
    free: int | None
    """MiB of free memory; None: nvidia-smi does not know it, as with a share of a GPU."""
    total: int | None
    """MiB of memory."""

    def __str__(self) -> str:
        memory = ""
        if self.free is not None and self.total is not None:
            memory = f", {self.free / 1024:.1f} of {self.total / 1024:.1f} GiB free"
        return f"{self.name} (driver {self.driver}{memory})"


def list_gpus() -> list[Gpu]:
    """Return the GPUs that nvidia-smi lists; none if it is not installed.

    Raises:
        NvidiaSmiFailed: when it does not answer, or answers with an error.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    advice = "Run `nvidia-smi` to see why; a driver that was just updated needs a restart."
    try:
        done = subprocess.run(
            [program, *QUERY], capture_output=True, timeout=TIMEOUT, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NvidiaSmiFailed(f"nvidia-smi does not answer: {error}. {advice}") from error
    out = done.stdout.decode(errors="replace")
    if done.returncode:
        lines = (out + done.stderr.decode(errors="replace")).strip().splitlines()
        reason = lines[0][:200].rstrip(". ") if lines else f"it exits with {done.returncode}"
        raise NvidiaSmiFailed(f"nvidia-smi failed: {reason}. {advice}")
    return [gpu for line in out.splitlines() if (gpu := _parse(line))]


def _parse(line: str) -> Gpu | None:
    """Return the GPU of a line; None if the line describes none."""
    name, *values = (field.strip() for field in line.rsplit(",", 3))
    if not name or len(values) != 3:
        return None
    driver, *memory = values
    free, total = (int(text) if text.isdecimal() else None for text in memory)
    return Gpu(name, driver, free, total)


def visible_gpus(gpus: Sequence[Gpu] | None = None) -> list[str]:
    """Return the names of the GPUs that a process started here can use.

    They are those in CUDA_VISIBLE_DEVICES, or without this variable the numbers of all.

    Args:
        gpus: those of this machine, if they are known already.

    Raises:
        NvidiaSmiFailed: when nvidia-smi does not answer, or answers with an error.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number, _ in enumerate(list_gpus() if gpus is None else gpus)]
    return [name for each in visible.split(",") if (name := each.strip()) not in ("", "-1")]


def torch_version() -> str | None:
    """Return the version of the installed torch with its build, such as `2.13.0+cpu`."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def is_cpu_build(torch: str) -> bool:
    """Return whether a version of torch cannot use a GPU."""
    return torch.partition("+")[2].startswith("cpu")


def torch_fault(timeout: float) -> str | None:
    """Return why torch cannot compute on a GPU, from a process of its own; None: it can.

    Args:
        timeout: seconds; importing torch takes several.
    """
    code = "import torch; torch.cuda.init(); torch.zeros(1, device='cuda')"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it does not answer in {timeout:.0f} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"its process exits with {done.returncode}"


def is_usable(control_device: Path = CONTROL_DEVICE) -> bool:
    """Return whether this environment computes on a GPU.

    There must be one, and torch, if it is installed, must be built for it.
    """
    return control_device.exists() and not is_cpu_build(torch_version() or "")


def describe_use() -> str | None:
    """Return a sentence for the start of a run: its GPUs, or why it uses none; None without."""
    try:
        gpus = list_gpus()
    except NvidiaSmiFailed as error:
        return str(error)
    torch = torch_version() or ""
    if not gpus:
        return None
    if is_cpu_build(torch):
        return f"{describe_unused(gpus, torch)}. {INSTALL}"
    return f"GPU: {describe_gpus(gpus)}."


def describe_unused(gpus: list[Gpu], torch: str) -> str:
    """Return that this version of torch, built for CPUs, does not use the GPUs."""
    return f"{describe_gpus(gpus)} is not used: torch {torch} is built for CPUs"


def describe_gpus(gpus: list[Gpu]) -> str:
    """Return the GPUs in one line, equal ones counted."""
    counts = Counter(map(str, gpus)).items()
    return "; ".join(f"{count} x {text}" if count > 1 else text for text, count in counts)
