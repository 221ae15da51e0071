"""The Python that vLLM is started with."""

import gc
import socket
import sys
from pathlib import Path

import pytest

from ltrain_train.gateway.serving.model_process import _is_listening
from ltrain_train.vllm_python import find_python


def test_vllms_python_is_found_beside_this_environment_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LTRAIN_VLLM_PYTHON", raising=False)
    assert find_python() == Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"


@pytest.mark.filterwarnings("error")
def test_a_bound_socket_without_a_listener_is_not_a_server(tmp_path: Path) -> None:
    """vLLM binds its socket first and starts listening a minute later."""
    path = tmp_path / "http"
    assert not _is_listening(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert not _is_listening(path)
        server.listen()
        assert _is_listening(path)
    gc.collect()
