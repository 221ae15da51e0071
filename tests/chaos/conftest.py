"""A model, and a folder whose path is short enough, for runs that are killed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.train import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model") / "tiny", seed=1)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a temporary folder whose path is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="lc-", dir="/tmp") as folder:
        yield Path(folder)
