from pathlib import Path

import pytest

from ltrain_train.policy.weights import dead_zone, fast_dtype


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("fpu avx2 fma", "fp32"), ("avx512f avx512_bf16", "bf16"), ("amx_bf16 avx512f", "bf16")],
)
def test_a_cpu_computes_in_bfloat16_only_with_its_instructions(
    tmp_path: Path, flags: str, dtype: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n")
    assert fast_dtype(cpuinfo, tmp_path / "none") == dtype


def test_a_gpu_computes_in_bfloat16(tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    assert fast_dtype(tmp_path / "none", device) == "bf16"


def test_small_learning_rates_are_in_the_dead_zone_of_bf16() -> None:
    assert dead_zone("bf16", lora=True) == 2e-4
    assert dead_zone("bf16", lora=False) == 1e-4
    assert dead_zone("fp32", lora=True) == 0
