"""Which Python vLLM is started with."""

import sys
from pathlib import Path

import pytest

from ltrain_train.gateway.vllm import find_python


def test_it_is_found_beside_our_own_environment_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LTRAIN_VLLM_PYTHON", raising=False)
    assert find_python() == Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
