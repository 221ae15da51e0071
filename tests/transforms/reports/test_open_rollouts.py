"""The rollouts that run now, and the newest training wave."""

from typing import Any

from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_transforms.reports import (
    WaveReference,
    newest_training_wave,
    read_open_rollouts,
)


def test_rollouts_that_have_not_ended_those_with_failures_first(store: Store, scene: Any) -> None:
    ended = scene.attempt("t1", 0)
    ended.dispatch()
    ended.llm("write")
    ended.close()
    running = scene.attempt("t1", 1)
    running.dispatch()
    running.llm("write")
    running.llm("write")
    failing = scene.attempt("t2", 0, wave=3)
    failing.dispatch()
    failing.tool(error="boom()")
    not_dispatched = scene.attempt("t3", 0)
    not_dispatched.llm("write")
    insert_otlp(store, scene.request())
    found = read_open_rollouts(store)
    assert [one.rollout for one in found.rollouts] == [failing.rollout, running.rollout]
    first, second = found.rollouts
    assert (first.run, first.mode, first.wave, first.task) == ("demo", "train", 3, "t2")
    assert (first.calls, first.failed > 0, second.failed) == (0, True, 0)
    assert second.seconds >= second.quiet > 0 and not found.has_more


def test_an_empty_store_has_neither(store: Store) -> None:
    assert read_open_rollouts(store).rollouts == []
    assert newest_training_wave(store) is None


def test_the_newest_training_wave_is_that_of_the_newest_span(store: Store, scene: Any) -> None:
    for wave, mode in ((0, "train"), (1, "train"), (7, "val")):
        rollout = scene.attempt("t1", 0, wave=wave, mode=mode)
        rollout.clock += wave * 1_000_000_000
        rollout.dispatch()
        rollout.close()
    insert_otlp(store, scene.request())
    assert newest_training_wave(store) == WaveReference("demo", "train", 1)
