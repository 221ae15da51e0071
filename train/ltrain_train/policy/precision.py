"""The fast precision of this machine: bfloat16 if the hardware supports it, else float32.

On a CPU without bfloat16 instructions a matrix product in bfloat16 is about thirty times slower
than in float32 (1.1 against 34 GFLOPS on two AVX2 cores).
"""

from pathlib import Path
from typing import Literal

CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names of the bfloat16 instructions in /proc/cpuinfo, on x86 and on ARM."""

VLLM_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
"""vLLM's name of each precision."""


def fast_dtype(
    cpuinfo: Path = Path("/proc/cpuinfo"), device: Path = Path("/dev/nvidia0")
) -> Literal["bf16", "fp32"]:
    """Return the precision that `dtype = "auto"` stands for on this machine."""
    if device.exists():
        return "bf16"
    try:
        flags = frozenset(cpuinfo.read_text().split())
    except OSError:
        return "fp32"
    return "bf16" if flags & CPU_FLAGS else "fp32"
