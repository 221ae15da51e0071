"""The report on a run, computed from its spans."""

from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.store import Store
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports.dataset import PROMPTS
from ltrain_transforms.reports.overview import RUN_COLUMNS, RunTable
from ltrain_transforms.reports.references import GroupReference, Kind, Reference, WaveReference
from ltrain_transforms.reports.report import Chart, Facts, Grid, Report, Share
from ltrain_transforms.reports.run import run_report
from ltrain_transforms.reports.run_state import RunState, RunStatus
from ltrain_transforms.reports.wave_rewards import apply_recipe
from ltrain_transforms.reports.waves import query_waves
from ltrain_transforms.show.lookup import ignore_status, look_up

SECOND = 1_000_000_000
TRACE = "ab" * 16


@pytest.fixture
def shown(scene: Any, recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """The report on three waves of a group of two, a validation, and two updates."""
    monkeypatch.chdir(recipe_file.parent)
    for wave in range(3):
        for sample in range(2):
            rollout = attempt(scene, wave, sample)
            prompt: Any = {"ltrain.continued": sample}
            if wave and not sample:
                prompt["ltrain.not_continued"] = "unknown"
            recorded = {"ltrain.policy.version": wave, **prompt}
            rollout.llm("write", (1, wave), (4,), gateway=recorded)
            rollout.tool(error="boom()" if sample == 0 and wave == 1 else "")
            rollout.evaluate(0.5 * sample * wave)
            rollout.evaluate(1.0, name="speed", by="ltrain.instrument")
            rollout.close("timeout" if (wave, sample) == (2, 0) else "ok")
    broken = attempt(scene, 0, 2)
    broken.evaluate(9.0)
    broken.close("infra")
    validation = attempt(scene, 1, 0, mode="val")
    validation.llm("write")
    validation.evaluate(0.75)
    validation.close()
    for wave in range(2):
        learn(scene, wave, "ltrain.train.step", 10, 14, step=1, loss=0.5)
        learn(scene, wave, "ltrain.train.step", 15, 20, step=2, loss=0.25)
        learn(scene, wave, "ltrain.policy.publish", 21, 23)
    early = scene.attempts[0]
    # a worker reports its last spans when it exits, long after the wave
    late = {"ltrain.rollout.spans": 0}
    report = {"process": "worker", "start": early.spans[0].start + 90 * SECOND}
    early.emit("ltrain.process", "ltrain.instrument", late, **report)
    with open_empty_store(recipe_file.parent / "store") as store:
        insert_otlp(store, scene.request())
    found = look_up("demo", home=Path(".ltrain"), dsn=f"chdb://{recipe_file.parent}/store")
    assert isinstance(found, Report)
    return found


def attempt(scene: Any, wave: int, sample: int, **more: Any) -> Any:
    made = scene.attempt("t1", sample, wave=wave, **more)
    made.clock += wave * 100 * SECOND
    made.dispatch()
    return made


def learn(scene: Any, wave: int, name: str, begin: int, end: int, **metrics: float) -> None:
    """Add a span of the learner, `begin` seconds after the start of the wave."""
    first = next(one for one in scene.attempts if one.identity.wave == wave).spans[0].start
    attributes = {
        "ltrain.policy.name": "sql",
        "ltrain.policy.version": wave + (name == "ltrain.policy.publish"),
        "ltrain.dataset.id": f"d{wave}",
        **{f"ltrain.train.{key}": value for key, value in metrics.items()},
    }
    times = {"start": first + begin * SECOND, "end": first + end * SECOND}
    scene.attempts[0].emit(
        name, "ltrain.learner", attributes, named=False, trace=TRACE, process="learner", **times
    )


def chart(shown: Report, title: str) -> dict[str, tuple[tuple[float, float], ...]]:
    (found,) = (one for one in shown.parts if isinstance(one, Chart) and one.title == title)
    return dict(found.series)


def grid(shown: Report, title: str) -> Grid:
    (found,) = (one for one in shown.parts if isinstance(one, Grid) and one.title == title)
    return found


def test_evaluations_by_wave_without_rollouts_that_do_not_count(shown: Report) -> None:
    assert chart(shown, "Reward in training") == {
        "reward": ((0, 0.0), (1, 0.25), (2, 0.5)),
        "speed (by the agent)": ((0, 1.0), (1, 1.0), (2, 1.0)),
    }
    assert chart(shown, "Validation, 95 % interval") == {"reward": ((1, 0.75),)}


def test_rules_and_drops_by_wave(shown: Report) -> None:
    assert chart(shown, "Reward by rule") == {
        "answer": ((0, 0.0), (1, 0.25), (2, 0.5)),
        "tool-failed": ((0, 0), (1, -0.1), (2, 0)),
    }
    assert chart(shown, "Drops in training") == {
        "executions: infra": ((0, 1), (1, 0), (2, 0)),
        "groups: no_spread": ((0, 2), (1, 0), (2, 0)),
        "rewards: unheard": ((0, 2), (1, 2), (2, 2)),
    }


def test_prompts_that_continue_by_tokens_are_counted_by_wave(shown: Report) -> None:
    counted = grid(shown, f"{PROMPTS}, in training")
    assert counted.columns == ("wave", "continued", "first call", "unknown")
    assert counted.rows == ((0, 1, 1, 0), (1, 1, 0, 1), (2, 1, 0, 1))


def test_seconds_and_metrics_come_from_the_learner_s_spans(shown: Report) -> None:
    spent = chart(shown, "Time in training")
    assert list(spent) == ["rollouts", "settle + build", "train", "publish"]
    assert spent["train"] == ((0, 10.0), (1, 10.0))
    assert spent["publish"] == ((0, 3.0), (1, 3.0))
    for wave in range(2):
        generated, settled = spent["rollouts"][wave][1], spent["settle + build"][wave][1]
        assert generated + settled == pytest.approx(10.0)
    assert chart(shown, "Step: loss") == {"loss": ((0, 0.375), (1, 0.375))}


def test_there_is_one_row_per_wave(shown: Report) -> None:
    waves = grid(shown, "Waves")
    kinds = ("infra", "ok", "timeout")
    last = ("became", "samples", "tokens", "steps", "dataset")
    columns = ("wave", "policy", "rollouts", *kinds, *last)
    assert waves.columns == columns
    train0, train1, train2 = (WaveReference("demo", "train", wave) for wave in range(3))
    val1 = WaveReference("demo", "val", 1)
    sql0, sql1, sql2 = ((Reference(Kind.POLICY, f"sql@{number}"),) for number in range(3))
    d0, d1 = (Reference(Kind.DATASET, name) for name in ("d0", "d1"))
    assert waves.rows == (
        (train0, sql0, 3, 1, 2, None, Share(0, 3, "0 of 3 trained; no spread 2"), 0, 0, 2, d0),
        (train1, sql1, 2, None, 2, None, Share(2, 2, "2 of 2 trained"), 2, 2, 2, d1),
        (val1, sql0, 1, None, 1, None, None, None, None, None, None),
        (train2, sql2, 2, None, 1, 1, Share(2, 2, "2 of 2 trained"), 2, 2, None, None),
    )


def test_without_a_recipe_rules_and_drops_are_not_guessed(shown: Report, recipe_file: Path) -> None:
    recipe_file.unlink()
    dsn = f"chdb://{recipe_file.parent}/store"
    found = look_up("run:demo", home=Path(".ltrain"), dsn=dsn)
    assert isinstance(found, Report)
    assert found.data["rules"] is None
    assert chart(found, "Reward in training") == chart(shown, "Reward in training")
    titles = [one.title for one in found.parts if isinstance(one, Chart)]
    assert "Reward by rule" not in titles and "Drops in training" not in titles
    assert ("judged by", "no recipe: no ltrain.toml here; --recipe names one") in (
        found.parts[0].rows  # type: ignore[union-attr]
    )


def test_production_traffic_has_no_outcomes_and_is_shown(
    scene: Any, store: Store, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe_file.parent)
    for sample in range(2):
        rollout = scene.attempt("t1", sample, mode="prod")
        rollout.llm("write")
        rollout.evaluate(1.0, by="somebody")
    insert_otlp(store, scene.request())
    found = run_of(store, recipe_file)
    assert chart(found, "Validation, 95 % interval") == {
        "reward (by the agent) (prod)": ((0, 1.0),)
    }
    wave, policy = WaveReference("demo", "prod", 0), (Reference(Kind.POLICY, "sql@0"),)
    assert grid(found, "Waves").rows == ((wave, policy, 2, None, None, None, None, None),)


def test_a_run_without_rollouts_is_empty(
    scene: Any, store: Store, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe_file.parent)
    rollout = scene.attempt("t1", 0)
    rollout.emit("alone", "agent", {"ltrain.run.id": "demo"}, named=False)
    insert_otlp(store, scene.request())
    found = run_of(store, recipe_file)
    assert grid(found, "Waves").rows == ()
    assert not [one for one in found.parts if isinstance(one, Chart)]


def run_of(store: Store, recipe: Path) -> Report:
    found = query_waves(store, "demo")
    of_recipe = apply_recipe(store, Recipe.load(recipe), "demo", found.waves, ignore_status)
    return run_report("demo", found, of_recipe, "its recipe", RunState(RunStatus.UNKNOWN))


def raise_alarm(scene: Any, number: int, **more: Any) -> None:
    """Add the span of an alarm of wave 0, as the run emits it."""
    values = {
        "ltrain.run.id": "demo",
        "ltrain.mode": "train",
        "ltrain.wave": 0,
        "ltrain.policy.name": "sql",
        "ltrain.alarm.name": "drops",
        "ltrain.alarm.subject": "constrained",
        "ltrain.alarm.message": "wave 0: 38% of the rollouts",
        "ltrain.alarm.rollouts": '["r1", "r2"]',
        "ltrain.alarm.tasks": "[]",
    }
    scope = more.pop("scope", "ltrain.learner")
    start = scene.attempts[0].clock + number * SECOND
    place: Any = {"trace": TRACE, "start": start, "end": start, "process": "loop"}
    scene.attempts[0].emit("ltrain.alarm", scope, values | more, named=False, **place)


def test_a_run_shows_the_alarms_that_its_loop_recorded(
    scene: Any, store: Store, recipe_file: Path
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.llm()
    rollout.evaluate(1.0)
    rollout.close()
    raise_alarm(scene, 1, **{"ltrain.alarm.message": "before the wave was repeated"})
    raise_alarm(scene, 2)
    raise_alarm(scene, 5, **{"ltrain.wave": 2, "ltrain.alarm.message": "wave 2: 40%"})
    groups = {"ltrain.alarm.name": "no_spread", "ltrain.alarm.subject": ""}
    groups |= {"ltrain.alarm.rollouts": "{broken", "ltrain.alarm.tasks": '["t1"]'}
    raise_alarm(scene, 3, **groups, **{"ltrain.alarm.since": 0})
    raise_alarm(scene, 4, scope="my.agent", **{"ltrain.alarm.name": "invented"})
    insert_otlp(store, scene.request())
    found = run_of(store, recipe_file)
    message = "wave 0: 38% of the rollouts"
    [alarms] = [part for part in found.parts if isinstance(part, Facts) and part.title == "Alarms"]
    assert alarms.rows == (
        ("drops", "wave 2: 40%"),
        ("in", (WaveReference("demo", "train", 0), WaveReference("demo", "train", 2))),
        ("to read", (Reference(Kind.ROLLOUT, "r1"), Reference(Kind.ROLLOUT, "r2"))),
        ("no_spread", message),
        ("in", (WaveReference("demo", "train", 0),)),
        ("to read", (GroupReference("demo", "train", 0, "t1"),)),
    )
    of_run = {"wave": 0, "policy": "sql", "message": message}
    assert found.data["alarms"][:2] == [
        of_run
        | {"name": "drops", "subject": "constrained", "since": None}
        | {"rollouts": ["r1", "r2"], "tasks": []},
        of_run
        | {"name": "no_spread", "subject": "", "since": 0}
        | {"rollouts": [], "tasks": ["t1"]},
    ]
    [row] = RunTable().read(store, recipe_file.parent).rows
    assert row[RUN_COLUMNS.index("waves with alarms")] == 2
    # an alarm is no call and no rollout of the run
    assert [(wave["mode"], wave["rollouts"]) for wave in found.data["waves"]] == [("train", 1)]


def test_a_run_without_alarms_has_no_table_of_them(
    scene: Any, store: Store, recipe_file: Path
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.evaluate(1.0)
    rollout.close()
    insert_otlp(store, scene.request())
    found = run_of(store, recipe_file)
    assert "Alarms" not in [part.title for part in found.parts]
    [row] = RunTable().read(store, recipe_file.parent).rows
    assert row[RUN_COLUMNS.index("waves with alarms")] is None
