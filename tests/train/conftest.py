"""A runner whose gateway and collector are one fake server."""

import fcntl
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.runners import make_runner
from tests.up import running_up

from ltrain_collector.access import Keys, Role
from ltrain_train.rollout import Runner, Task

HERE = Path(__file__).parent / "rollout"
SEEN = ("input", "raises", "leaves", "unsayable", "sleeps", "dies", "crashes", "exits", "path")
"""The folder of the agents of these tests."""
SECRET = "a secret of thirty-two characters"


def _outside() -> Any:
    spec = importlib.util.spec_from_file_location("outside", HERE / "outside.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Outside()


class HeldLock:
    """A lock as a run holds it: a process that inherits `descriptor` holds the flock too."""

    def __init__(self, file: Path) -> None:
        self.descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
        self._again = os.open(file, os.O_RDWR)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        """Close the descriptor, as the death of the runner does."""
        os.close(self.descriptor)

    @property
    def is_free(self) -> bool:
        """Whether nobody holds it any more; then this process takes it."""
        try:
            fcntl.flock(self._again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._again)


@pytest.fixture
def held_lock(tmp_path: Path) -> Iterator[HeldLock]:
    with closing(HeldLock(tmp_path / "lock")) as lock:
        yield lock


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with _outside() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def runner(outside: Any, home: Path) -> Iterator[Callable[..., Runner]]:
    """Start a runner of an agent in `agents/`; it ends with the test."""
    with ExitStack() as stack:

        def start(agent: str, **overrides: Any) -> Runner:
            settings = {
                "run": "r",
                "reward": None,
                "folder": HERE / "agents",
                "gateway": outside.url,
                "secret": SECRET,
                "policy": "sql",
                "home": home,
                "workers": 1,
                "concurrency": 4,
                "timeout": 20.0,
                "agent_sees": SEEN,
                "environ": {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai"},
            }
            return stack.enter_context(make_runner(agent=agent, **{**settings, **overrides}))

        yield start


@pytest.fixture
def task() -> Callable[..., Task]:
    def make(id: str = "a", **more: Any) -> Task:
        return Task(id=id, input=f"question {id}", **more)

    return make


@dataclass
class Served:
    home: Path
    endpoint: str
    dsn: str
    keys: Keys


@pytest.fixture
def served(home: Path, outside: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """`ltrain up` with keys, one of which this process has; `outside` is only the gateway."""
    keys = Keys(home.absolute() / "store")
    ingest, _ = keys.make_key(Role.INGEST)
    query, _ = keys.make_key(Role.QUERY)
    (home / "store.secret").write_text(SECRET)
    with running_up(home / "store") as up:
        dsn = f"http://any:{query}@127.0.0.1:{up.sql}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", up.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"Authorization=Bearer%20{ingest}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", f"Authorization=Bearer%20{ingest}")
        monkeypatch.setenv("LTRAIN_STORE", dsn)
        yield Served(home, up.endpoint, dsn, keys)
