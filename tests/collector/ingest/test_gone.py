"""A running server whose store folder is removed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.http_requests import ask, health, post

from ltrain_collector.errors import StoreGone
from ltrain_collector.store import Engine


def _remove(store: Path) -> None:
    shutil.rmtree(store)


def _replace(store: Path) -> None:
    store.rename(store.with_name("moved"))
    shutil.copytree(store.with_name("moved"), store)


@pytest.mark.parametrize("go", [_remove, _replace])
def test_nothing_is_acknowledged_and_health_says_why(
    start: Callable[..., Any],
    request_of: Callable[..., bytes],
    tmp_path: Path,
    go: Callable[[Path], None],
) -> None:
    up = start(tmp_path / "store")
    assert post(up.otlp, request_of((1, 1))).status == 200
    assert health(up.otlp)["status"] == "ok"
    go(tmp_path / "store")
    for _ in range(2):
        answer = post(up.otlp, request_of((2, 1)))
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert b"was removed or replaced while it was open" in answer.body
    report = ask(up.otlp, "GET", "/health")
    assert report.status == 503
    assert report.json["status"].startswith(f"The store's folder {tmp_path / 'store'} was removed")
    assert report.json["traces"]["refused"] == {"engine": 2}
    assert ask(up.otlp, "GET", "/metrics").status == 200


def test_an_insert_into_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "store")
    try:
        engine.command("CREATE TABLE default.t (a Int64) ENGINE = MergeTree ORDER BY a")
        shutil.rmtree(tmp_path / "store")
        with pytest.raises(StoreGone, match=r"ltrain store restore BACKUP"):
            engine.insert("INSERT INTO default.t (a)", "TSV", [b"1\n"])
        assert not (tmp_path / "store").exists()
    finally:
        engine.close()
