from pathlib import Path

import pytest
from tests.train.gpus import install_torch

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


def test_a_gpu_computes_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "nvidiactl"
    device.touch()
    install_torch(tmp_path, "2.13.0")
    monkeypatch.syspath_prepend(tmp_path)
    assert fast_dtype(tmp_path / "none", device) == "bf16"
    assert fast_dtype(tmp_path / "none", tmp_path / "none") == "fp32"


def test_a_gpu_counts_only_with_a_torch_that_is_built_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "nvidiactl"
    device.touch()
    install_torch(tmp_path, "2.13.0+cpu")
    monkeypatch.syspath_prepend(tmp_path)
    assert fast_dtype(tmp_path / "none", device) == "fp32"


def test_small_learning_rates_are_in_the_dead_zone_of_bf16() -> None:
    assert dead_zone("bf16", lora=True) == 2e-4
    assert dead_zone("bf16", lora=False) == 1e-4
    assert dead_zone("fp32", lora=True) == 0
