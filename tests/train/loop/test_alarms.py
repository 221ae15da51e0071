"""The alarms of a run, as spans and in the journal, and the stop that a run continues from."""

import json
import tomllib
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.otlp import insert_otlp, open_empty_store
from tests.train.loop.test_online import ROLLOUT, Learning, add_policy, start_run, train_wave
from tests.train.runs.journals import TRAINED, changed, new_journal
from tests.transforms.conftest import RECIPE, Scene

from ltrain_train.errors import AlarmRaised
from ltrain_train.runs.journal import Journal, Stopped, Wave, new_alarms
from ltrain_train.runs.report import wave_notes
from ltrain_transforms.recipe import Recipe

DROPS, SELECTIVE = ("drops", "constrained"), ("selective_drops", "constrained")


def recorded(exporter: InMemorySpanExporter) -> list[tuple[object, ...]]:
    def values(span: ReadableSpan) -> tuple[object, ...]:
        assert span.name == "ltrain.alarm" and span.attributes is not None
        assert span.instrumentation_scope and span.instrumentation_scope.name == "ltrain.learner"
        names = ("run.id", "mode", "wave", "policy.name", "policy.version", "alarm.name")
        return tuple(span.attributes[f"ltrain.{name}"] for name in names)

    return [values(span) for span in exporter.get_finished_spans()]


def test_a_run_stops_after_the_wave_of_an_alarm_once_and_then_continues(tmp_path: Path) -> None:
    train = {"updates": 2, "stop_on": ["drops"]}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | {"rollout": ROLLOUT, "train": train})
    add_policy(tmp_path)
    scene = train_wave(train_wave(Scene()), 1)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    journal = new_journal(tmp_path / "run")
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        learning = Learning(tmp_path, version=None)  # so that wave 1 is of the same version
        learning.tracer = provider.get_tracer("ltrain.learner")
        online, agents, shown = start_run(tmp_path, store, recipe, journal, learning)
        with pytest.raises(
            AlarmRaised, match=r"stopped after wave 0, because train.stop_on"
        ) as end:
            online.run()
        assert agents.stopped and not journal.finished
        [wave] = shown
        assert "38% of the rollouts lost calls as `constrained`" in str(end.value)
        assert "low rewards" not in str(end.value), "the recipe does not stop on it"
        again = Journal.load(tmp_path / "run")
        assert again is not None and again.stopped == {0}
        online, agents, shown = start_run(tmp_path, store, recipe, again, learning)
        online.run()
    assert again.finished
    assert [each.raised for each in (wave, *shown)] == [(DROPS, SELECTIVE)] * 2
    assert learning.numbers == [0, 1]
    assert wave.figures is not None
    assert (wave.figures.best, wave.figures.lowest, wave.figures.tools) == (1.0, 0.0, {})
    assert wave.figures.lost == {"constrained": 0.375}
    assert [row[2:] for row in recorded(exporter)] == [
        (number, "sql", 0, name) for number in range(2) for name in ("drops", "selective_drops")
    ]
    first = exporter.get_finished_spans()[0].attributes
    assert first is not None and first["ltrain.run.id"] == "demo"
    rollouts = json.loads(str(first["ltrain.alarm.rollouts"]))
    lost = {attempt.rollout for attempt in scene.attempts[:6]}
    assert len(rollouts) == 5 and set(rollouts) < lost
    assert f"read `ltrain show {rollouts[0][:12]}`" in wave.alarms[0]


def test_a_run_that_is_killed_before_it_stops_stops_when_it_continues(tmp_path: Path) -> None:
    train = {"updates": 1, "stop_on": ["selective_drops"]}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | {"rollout": ROLLOUT, "train": train})
    add_policy(tmp_path)
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, train_wave(Scene()).request())
        learning, journal = Learning(tmp_path), new_journal(tmp_path / "run")
        with pytest.raises(AlarmRaised):
            start_run(tmp_path, store, recipe, journal, learning)[0].run()
        lines = journal.path.read_text().splitlines(keepends=True)
        assert '"stopped"' in lines[-1]
        journal.path.write_text("".join(lines[:-1]))
        killed = Journal.load(journal.folder)
        assert killed is not None
        with pytest.raises(AlarmRaised):
            start_run(tmp_path, store, recipe, killed, learning)[0].run()
        start_run(tmp_path, store, recipe, killed, learning)[0].run()
    assert killed.finished and learning.numbers == [0]
    assert next(event for event in killed.events if isinstance(event, Stopped)).wave == 0


def with_waves(folder: Path, *waves: Wave) -> Journal:
    journal = new_journal(folder)
    journal.waves.extend(waves)
    return journal


def test_only_an_alarm_that_the_wave_before_lacks_is_new(tmp_path: Path) -> None:
    farmed = {"alarms": ("it rises", "The learner warns."), "raised": (("divergence", "a"),)}
    other = {
        "alarms": ("b rises", "it rises"),
        "raised": (("divergence", "b"), ("divergence", "a")),
    }
    own = with_waves(
        tmp_path,
        TRAINED,
        changed(TRAINED, wave=1, **farmed),
        changed(TRAINED, wave=2, **other),
        changed(TRAINED, wave=3, alarms=("The learner warns.",)),
    ).of("sql")
    found = [new_alarms(own, number, ["divergence"]) for number in range(-1, 5)]
    assert found == [[], [], ["it rises"], ["b rises"], [], []]
    assert new_alarms(own, 1, ["drops"]) == []


def test_a_row_prints_its_alarms_and_the_learner_s_warnings() -> None:
    wave = changed(TRAINED, alarms=("it rises", "It was undone."), raised=(("divergence", "a"),))
    assert list(wave_notes(wave)) == ["  alarm: it rises", "  alarm: It was undone."]
