"""A tiny model, and a home that reaches no gateway."""

import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).parents[1] / "tiny.py"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny model with a word tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([sys.executable, TINY, folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty LTRAIN_HOME."""
    for name in ("LTRAIN_GATEWAY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
