"""`make bench-soak` for fifteen seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.soak import Soak, run


@pytest.mark.nightly
def test_writers_readers_and_prunes_beside_each_other(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    up = start(tmp_path / "store")
    soak = Soak(up.otlp, up.owned, up.pid)
    found = run(soak, seconds=15, every=3)
    assert soak.errors == []
    assert (found["errors"], found["lost"], found["doubled"]) == (0, 0, 0)
    assert all(len(requests) > 5 for requests in soak.stored.values())
    assert soak.pruned > 0
    assert soak.queries > 5
    assert up.stop() == 0
