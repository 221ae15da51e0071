"""The driver finds every process of its project, and no other process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def driver() -> Any:
    spec = spec_from_file_location("chaos_driver_alone", HERE / "driver.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _running(home: Path) -> Iterator[int]:
    environ = {**os.environ, "LTRAIN_HOME": str(home)}
    with subprocess.Popen(["sleep", "600"], env=environ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_worker_is_a_process_of_the_project(driver: Any, tmp_path: Path) -> None:
    project = driver.Project(tmp_path, 1, tmp_path)
    home, other = project.home, tmp_path / ".ltrain-2"
    with _running(home) as service, _running(home / "agents" / "r") as worker, _running(other):
        assert {each.pid for each in project.processes()} == {service, worker}
