"""GPUs as nvidia-smi describes them; the program is a fake, since no test machine has a GPU."""

from pathlib import Path

import pytest
from tests.train.gpus import H100, install_nvidia_smi, install_torch, use_programs

from ltrain_train import gpu


def test_gpus_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert (gpu.list_gpus(), gpu.describe_use()) == ([], None)
    monkeypatch.undo()
    use_programs(install_nvidia_smi(tmp_path, H100, H100), monkeypatch)
    first, second = gpu.list_gpus()
    assert first == second == gpu.Gpu("NVIDIA H100 80GB HBM3", "580.95.05", 80500, 81559)
    text = "2 x NVIDIA H100 80GB HBM3 (driver 580.95.05, 78.6 of 79.6 GiB free)"
    assert gpu.describe_gpus([first, second]) == text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("Some, GPU, 550.1, [N/A], [N/A]", "Some, GPU (driver 550.1)"),
        ("GPU, 550.1, [Insufficient Permissions], 81559", "GPU (driver 550.1)"),
        ("No devices were found", ""),
        ("", ""),
        (", 1, 2, 3", ""),
        ("a warning, of a driver", ""),
    ],
)
def test_odd_lines_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, text: str
) -> None:
    use_programs(install_nvidia_smi(tmp_path, line), monkeypatch)
    assert gpu.describe_gpus(gpu.list_gpus()) == text


def test_a_failing_nvidia_smi_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "Failed to initialize NVML: Driver/library version mismatch"
    use_programs(install_nvidia_smi(tmp_path, reason, status=18), monkeypatch)
    with pytest.raises(gpu.NvidiaSmiFailed, match=reason):
        gpu.list_gpus()
    assert reason in str(gpu.describe_use())


def test_a_run_prints_its_gpus_or_why_it_uses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_programs(install_nvidia_smi(tmp_path / "bin", H100), monkeypatch)
    name = "NVIDIA H100 80GB HBM3 (driver 580.95.05, 78.6 of 79.6 GiB free)"
    unused = f"{name} is not used: torch 2.13.0+cpu is built for CPUs. {gpu.INSTALL}"
    assert gpu.describe_use() == unused
    install_torch(tmp_path, "2.13.0")
    monkeypatch.syspath_prepend(tmp_path)
    assert gpu.describe_use() == f"GPU: {name}."


def test_a_torch_that_finds_no_gpu_is_quoted() -> None:
    """The tests' torch is built for CPUs."""
    fault = gpu.torch_fault(100)
    assert fault == "AssertionError: Torch not compiled with CUDA enabled"
