"""Fixtures of the security tests, including those of the collector and the gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.collector.conftest import folder, request_of
from tests.fake_vllm import FakeVllm
from tests.train.gateway.conftest import vllm, write_model
from tests.train.gateway.stage import Stage

__all__ = ["folder", "request_of", "stage", "vllm"]


@pytest.fixture
def stage(vllm: FakeVllm, tmp_path: Path) -> Iterator[Stage]:
    """A gateway before a fake policy server, with its home in `tmp_path`."""
    stage = Stage(vllm.url, tmp_path / "home")
    stage.policies.register("policy", write_model(tmp_path / "model"))
    with stage.running():
        yield stage
