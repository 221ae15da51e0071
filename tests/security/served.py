"""A store without keys and a gateway, named in the environment of the runs of a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.train.rollout.outside import Outside
from tests.up import Up, running_up


@dataclass
class Served:
    home: Path
    up: Up
    gateway: Outside


@contextmanager
def serving(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Run `ltrain up` and a gateway during the block."""
    monkeypatch.setenv("LTRAIN_HOME", str(home))
    with running_up(home / "store") as up, Outside() as gateway:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", up.endpoint)
        monkeypatch.setenv("LTRAIN_STORE", up.dsn)
        yield Served(home, up, gateway)
