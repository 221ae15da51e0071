import threading
import time
from typing import Any

import pytest
from tests.otlp import insert_otlp
from tests.transforms.conftest import MS

from ltrain_collector.store import Store
from ltrain_transforms.source.completeness import wait_complete


def whole(scene: Any, sample: int, **more: Any) -> Any:
    rollout = scene.attempt("t1", sample)
    rollout.dispatch()
    rollout.llm()
    return rollout.close(**more)


def test_what_is_closed_and_whole_is_complete(scene: Any, store: Store) -> None:
    rollout = whole(scene, 0)
    insert_otlp(store, scene.request())
    assert wait_complete(store, [rollout.rollout], timeout=0) == set()


def test_what_is_unknown_open_or_lacks_spans_is_not(scene: Any, store: Store) -> None:
    lacking, opened = whole(scene, 0, missing=1), scene.attempt("t1", 1)
    opened.dispatch()
    opened.llm()
    insert_otlp(store, scene.request())
    ids = [lacking.rollout, opened.rollout, "unknown"]
    assert wait_complete(store, ids, timeout=0) == set(ids)
    assert wait_complete(store, [], timeout=0) == set()


@pytest.mark.parametrize("step", [3_600, -3_600])
@pytest.mark.parametrize(("latest", "missing"), [("ok", False), (None, True)])
def test_the_latest_attempt_decides(
    scene: Any, store: Store, latest: str | None, missing: bool, step: int
) -> None:
    first = scene.attempt("t1", 0, attempt=1)
    first.llm()
    first.close("infra", missing=3)
    second = scene.attempt("t1", 0, attempt=2)
    second.clock = first.clock + step * 1000 * MS
    second.llm()
    if latest:
        second.close(latest)
    insert_otlp(store, scene.request())
    assert bool(wait_complete(store, [first.rollout], timeout=0)) is missing


def test_it_waits_for_spans_that_are_late(scene: Any, store: Store) -> None:
    rollout = whole(scene, 0)
    late = threading.Timer(0.3, insert_otlp, [store, scene.request()])
    late.start()
    begun = time.monotonic()
    assert wait_complete(store, [rollout.rollout], timeout=20) == set()
    assert 0.2 < time.monotonic() - begun < 15
    late.join()


def test_it_waits_no_longer_than_it_is_told(store: Store) -> None:
    begun = time.monotonic()
    assert wait_complete(store, ["never"], timeout=0.3) == {"never"}
    assert 0.3 <= time.monotonic() - begun < 10
