from dataclasses import replace
from pathlib import Path

import pytest
from tests.train.runs.journals import TRAINED, VALIDATION, changed

from ltrain_instrument.addresses import UI, announce
from ltrain_train.runs.journal import Journal, Phase
from ltrain_train.runs.report import (
    describe_places,
    describe_start,
    held_out_scores,
    idle_share,
    next_commands,
    time_left,
    time_spent,
)
from ltrain_transforms.recipe import Recipe

RECIPE = Recipe.model_validate(
    {
        "rollout": {"tasks": "t.jsonl", "agent": "a:b", "reward": "r:s"},
        "policy": [{"name": "sql"}],
        "reward": [{"name": "answer", "evaluation": "reward"}],
    }
)

WAVES = [VALIDATION, changed(TRAINED, metrics={})]


def journal() -> Journal:
    return Journal(folder=Path(), run="sql", recipe="r", policies={"sql": 0}, waves=WAVES)


def test_time_is_split_into_engines_and_the_rest() -> None:
    assert time_spent(journal().waves, 0.0, 62.0) == (
        "62 s: start and end 11 s, generate 18 s, train 30 s, load 2 s, build 0 s, settle 0 s. "
        "No generation, training or weight load in 19% of it."
    )
    assert time_spent([], 1.0, 10.0).startswith("9 s: start and end 9 s. No generation")


def test_engines_that_work_at_the_same_time_are_busy_once() -> None:
    waves = [Phase("generate", 2.0, 8.0), Phase("train", 4.0, 10.0), Phase("settle", 10.0, 20.0)]
    assert idle_share(waves, 0.0, 20.0) == 0.6
    assert idle_share([Phase("settle", 0.0, 5.0)], 0.0, 5.0) == 1.0


def test_the_start_says_where_the_run_begins_or_goes_on() -> None:
    new = replace(journal(), waves=[])
    assert describe_start(new, RECIPE, tasks=40, validation=96) == (
        "Run sql starts from sql@0: 10 updates of 12 tasks, 8 rollouts each; 96 held-out tasks."
    )
    assert "of 5 tasks, 8 rollouts each; no held-out tasks" in describe_start(new, RECIPE, 5, 0)
    assert describe_start(journal(), RECIPE, 40, 96) == (
        "Run sql goes on after update 1 of 10, from sql@1."
    )


def test_the_counts_of_a_start_are_singular_or_plural() -> None:
    train = RECIPE.train.model_copy(update={"updates": 1})
    assert RECIPE.rollout is not None
    rollout = RECIPE.rollout.model_copy(update={"rollouts_per_task": 1})
    small = RECIPE.model_copy(update={"train": train, "rollout": rollout})
    assert describe_start(replace(journal(), waves=[]), small, 1, 1, 1) == (
        "Run sql starts from sql@0: 1 update of 1 task, 1 rollout each; 1 held-out task; 1 test "
        "task."
    )


def test_the_time_left_is_that_of_the_second_wave_for_each_update() -> None:
    validation, first = WAVES
    second = changed(first, wave=1, seconds={"generate": 10.0, "train": 20.0})
    assert time_left([validation, first, second], updates=12) == "About 5 minutes left."
    assert time_left([validation, first, second], updates=2) == ""
    assert time_left([validation, first], updates=12) == ""
    assert time_left([validation], updates=12) == ""
    assert time_left([first, second, validation], updates=12) == ""
    assert time_left([first, second, changed(second, wave=2)], updates=12) == ""
    of_two = [changed(each, policy=name) for each in (first, second) for name in ("sql", "other")]
    assert time_left(of_two[:3], updates=12) == ""
    assert time_left(of_two, updates=12) == "About 10 minutes left."
    resumed = [changed(second, wave=7), changed(second, wave=8)]
    assert time_left(resumed, updates=12) == "About 2 minutes left."


def test_the_places_of_a_run_are_shown_without_keys() -> None:
    assert describe_places(Path(".ltrain"), "http://me:key@host:8123", "http://h:8000") == (
        "Files: .ltrain; store: http://[redacted]@host:8123; gateway: http://h:8000."
    )


def test_held_out_scores_have_intervals_and_a_paired_difference() -> None:
    first = changed(WAVES[0], tasks={"a": 0.0, "b": 1.0, "c": 0.0, "d": 0.0})
    last = changed(first, version=1, tasks={"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0})
    scores, difference = held_out_scores(replace(journal(), waves=[first, WAVES[1], last]))
    assert scores == (
        "Held-out tasks: 0.250 [0.000, 0.750] with v0 (1 timeout of 96 rollouts), then 0.750 "
        "[0.250, 1.000] with v1 (1 timeout of 96 rollouts)."
    )
    assert difference == (
        "The difference is +0.500 [0.000, 1.000]; intervals are of 95 %, over tasks."
    )
    assert list(held_out_scores(replace(journal(), waves=[first]))) == [
        "Held-out tasks: 0.250 [0.000, 0.750] with v0 (1 timeout of 96 rollouts)."
    ]
    assert list(held_out_scores(journal())) == []


def test_a_run_prints_how_fast_it_learned() -> None:
    first = changed(WAVES[0], score=0.25, tasks={"a": 0.25})
    last = changed(first, version=1, score=0.5, tasks={"a": 0.5})
    trained = changed(WAVES[1], tokens=90_000)
    [*_, sentence] = held_out_scores(replace(journal(), waves=[first, trained, last]))
    assert sentence == (
        "J = 2000 trained tokens/s x +2.78 score per million tokens = +20.00 score per hour of "
        "waves."
    )


def test_equal_differences_have_no_interval() -> None:
    first = changed(WAVES[0], tasks={"a": 0.0, "b": 0.0}, outcomes={"ok": 96})
    last = changed(first, version=1, tasks={"a": 1.0, "b": 1.0})
    scores, difference = held_out_scores(replace(journal(), waves=[first, last]))
    assert scores == "Held-out tasks: 0.000 with v0, then 1.000 with v1."
    assert difference == (
        "The difference is +1.000, the same on every task, so it has no interval."
    )


def test_one_held_out_task_has_no_interval() -> None:
    first = changed(WAVES[0], tasks={"a": 0.0})
    last = changed(first, version=1, tasks={"a": 1.0})
    _, difference = held_out_scores(replace(journal(), waves=[first, last]))
    assert difference == "The difference is +1.000 on the only task, so it has no interval."


def test_the_next_commands_name_the_run_and_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LTRAIN_HOME", raising=False)
    assert list(next_commands(journal(), [])) == [
        "Next:",
        "  ltrain show run:sql --html run.html",
        "  ltrain ui   # the same and each rollout, in a browser",
        "  ltrain serve --policy sql   # serves sql@1",
    ]


def test_the_next_commands_name_the_pages_that_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    with announce(tmp_path, UI, {UI: "http://127.0.0.1:8485"}):
        lines = list(next_commands(journal(), []))
    assert (
        lines[2] == "  http://127.0.0.1:8485   # `ltrain ui` runs there: the same and each rollout"
    )


def test_the_next_commands_have_the_home_and_what_the_recipe_serves_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", "my runs")
    options = ["--max-num-seqs", "8", "--", "--chat-template", "a b.jinja"]
    assert list(next_commands(journal(), options))[1:] == [
        "  LTRAIN_HOME='my runs' ltrain show run:sql --html run.html",
        "  LTRAIN_HOME='my runs' ltrain ui   # the same and each rollout, in a browser",
        "  LTRAIN_HOME='my runs' ltrain serve --policy sql --max-num-seqs 8 -- --chat-template "
        "'a b.jinja'   # serves sql@1",
    ]
