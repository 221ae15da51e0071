"""A wave is settled when the store has the end of each rollout."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import Scene

from ltrain_collector.store import Store
from ltrain_train.errors import SpansMissing
from ltrain_train.runs import waves
from ltrain_transforms.ended_rollout import EndedRollout

LATE = 1.0
"""Seconds after which the spans arrive, long after those that a wait for other spans takes."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "NOTICE", 0.1)
    monkeypatch.setattr(waves, "OUTAGE_TIMEOUT", 30.0)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_empty_store(tmp_path / "store") as opened:
        yield opened


def whole(scene: Scene, sample: int, *, spans: int = 0, **more: Any) -> EndedRollout:
    """Add the spans of an ended rollout, of which the runner knows `spans`."""
    rollout = scene.attempt("t1", sample)
    rollout.dispatch()
    rollout.llm()
    rollout.close(**more)
    return end_of(rollout.rollout, rollout.identity.attempt or 0, spans)


def end_of(rollout: str, attempt: int = 1, spans: int = 0) -> EndedRollout:
    return EndedRollout(
        rollout=rollout, attempt=attempt, task="t1", wave=0, outcome="ok", spans=spans
    )


def test_the_end_of_a_rollout_is_waited_for_longer_than_its_other_spans(
    scene: Scene, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    first = whole(scene, 0)
    insert_otlp(store, scene.request())
    second = whole(scene, 1)
    late = threading.Timer(LATE, insert_otlp, [store, scene.request()])
    late.start()
    assert waves.settle(store, [first, second], 0.2, ()) == set()
    late.join()
    assert "waiting for spans of 1 of 2 rollouts, which the collector at http" in caplog.text


def test_a_rollout_that_lacks_other_spans_is_left_out(scene: Scene, store: Store) -> None:
    lacking, rollout = whole(scene, 0, missing=1), whole(scene, 1)
    insert_otlp(store, scene.request())
    assert waves.settle(store, [lacking, rollout], 0.2, ()) == {lacking.rollout}


def lost_span(scene: Scene) -> EndedRollout:
    return whole(scene, 1, spans=9)


def lost_attempt(scene: Scene) -> EndedRollout:
    first = whole(scene, 1, outcome="infra")
    return first.model_copy(update={"attempt": first.attempt + 1})


@pytest.mark.parametrize("lost", [lambda _: end_of("never"), lost_span, lost_attempt])
def test_a_wave_that_lacks_spans_of_its_runner_is_not_summarized(
    scene: Scene,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    lost: Callable[[Scene], EndedRollout],
) -> None:
    rollouts = [whole(scene, 0), lost(scene)]
    insert_otlp(store, scene.request())
    monkeypatch.setattr(waves, "OUTAGE_TIMEOUT", 0.3)
    with pytest.raises(SpansMissing, match=r"lacks spans of 1 of 2 rollouts .* same command ag"):
        waves.settle(store, rollouts, 0.2, ())
