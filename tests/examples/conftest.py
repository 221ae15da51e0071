"""The modules of the example, and a fake server for its model."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.frameworks.conftest import model as model
from tests.frameworks.conftest import run as run
from tests.otlp import open_empty_store

from ltrain_collector.store import Store

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "text_to_sql"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store, closed after the test: a process can open one folder at a time."""
    with open_empty_store(tmp_path / "store") as store:
        yield store


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """Forget what a test imports from an example: modules of several have the same names."""
    before, path = set(sys.modules), [*sys.path]
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(FOLDER.parent):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def folder() -> Path:
    return FOLDER


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of the example with its folder on the path."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def outside() -> Iterator[Any]:
    """The fake server of the rollout tests: it completes chats and collects spans."""
    path = ROOT / "tests" / "train" / "rollout" / "outside.py"
    spec = importlib.util.spec_from_file_location("outside", path)
    assert spec is not None and spec.loader is not None
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    with fake.Outside() as server:
        yield server
