"""The settings of the devices; the learner's tests run on the CPU's."""

from pathlib import Path

import pytest
from tests.train.gpus import H100, install_nvidia_smi, use_programs

from ltrain_train.errors import BadRun
from ltrain_train.learner.verl_backend.device import (
    CPU,
    CUDA,
    check_ranks,
    current_device,
    detect_device,
    learner_environment,
)


def test_a_process_of_the_learner_has_the_device_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert detect_device() is CPU, "the tests' torch is built for CPUs"
    for device in (CPU, CUDA):
        environment = learner_environment(1, device=device)
        assert device.environment.items() <= environment.items()
        with monkeypatch.context() as patch:
            patch.delenv("VERL_PLATFORM", raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            assert current_device() is device


def test_each_rank_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_programs(install_nvidia_smi(tmp_path, H100, H100), monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check_ranks(CUDA, 2)
    check_ranks(CPU, 3)
    with pytest.raises(BadRun, match=r"the learner can use 2\. Set `ranks` to 2,"):
        check_ranks(CUDA, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    check_ranks(CUDA, 1)
    with pytest.raises(BadRun, match=r"the learner can use 1\."):
        check_ranks(CUDA, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(BadRun, match=r"the learner can use 0\."):
        check_ranks(CUDA, 1)
