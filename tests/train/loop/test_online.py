"""The waves of an online run: what it reads from the store, and what its journal records."""

import random
import tomllib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
from tests.otlp import insert_otlp
from tests.security.test_trust import sent
from tests.transforms.conftest import MS, NOON, RECIPE, Scene

from ltrain_collector.store import Store
from ltrain_train.errors import NotFinite, RolloutsFailed
from ltrain_train.learner import StepReport
from ltrain_train.loop.journal import Journal, Wave
from ltrain_train.loop.online import OnlineRun
from ltrain_train.loop.report import Phases
from ltrain_train.loop.training_rows import LeftOut
from ltrain_train.loop.update import Update
from ltrain_train.loop.wave_rows import wave_notes
from ltrain_train.policy import Policies
from ltrain_train.rollout import Task
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.policy_file import PolicyFile, PolicyVersion
from ltrain_transforms.recipe import Recipe

ROLLOUT = {"tasks": "t.jsonl", "agent": "a:b", "reward": "c:d", "rollouts_per_task": 16}


@dataclass
class Agents:
    """A fake runner, whose rollouts are already in the store."""

    finished: list[set[str]] = field(default_factory=list)
    waves: list[list[str]] = field(default_factory=list)
    """The ids of the tasks of each call."""
    work: Callable[[], object] = lambda: None
    """What happens while it runs."""

    def run(self, *plan: Any, finished: Collection[str], **_: Any) -> None:
        self.finished.append(set(finished))
        self.waves.append([task.id for task in plan[2]])
        self.work()


class Learning:
    """A fake updater in place of the learner's process."""

    learner = SimpleNamespace(wait=lambda: None)

    def __init__(self, home: Path, *, version: int | None = 1, undone: int = 0) -> None:
        self.policies, self.version, self.base = Policies(home), version, 0
        self.numbers: list[int] = []
        """The number in the run of each update."""
        self.report = StepReport(
            metrics={"drift_k3": 0.01}, rows=8, tokens=16, trained_tokens=8, steps=1, total_steps=1,
            seconds=1.0,
            undone=undone, warnings=("It was undone.",) if undone else (),
        )  # fmt: skip

    def update(self, dataset: Dataset, lineage: Any, checkpoints: Path, number: int) -> Update:
        self.numbers.append(number)
        return Update(self.version, self.report, LeftOut("sql", 16, {}, {}))


def add_policy(home: Path) -> PolicyVersion:
    """Write version 0 of the policy, without weights, and return its manifest."""
    base = home / "policies" / "sql" / "v0"
    base.mkdir(parents=True)
    files = {"config.json": PolicyFile(size=2, sha256="c0")}
    version = PolicyVersion(policy="sql", version=0, created=0, files=files)
    (base / "policy.json").write_text(version.model_dump_json())
    (base.parent / "current").write_text("0\n")
    return version


def train_wave(
    scene: Scene, wave: int = 0, *, attempt: int = 1, samples: Sequence[int] = range(16)
) -> Scene:
    """Add sixteen rollouts, of which the second half is rewarded."""
    for sample in samples:
        rollout = scene.attempt(sample=sample, wave=wave, attempt=attempt)
        rollout.dispatch()
        rollout.llm(gateway={"ltrain.constrained": True} if sample < 6 else {})
        rollout.evaluate(float(sample >= 8))
        rollout.close()
    return scene


def start_run(
    tmp_path: Path, store: Store, recipe: Recipe, journal: Journal, learning: Learning
) -> tuple[OnlineRun, Agents, list[Wave]]:
    agents, shown = Agents(), list[Wave]()
    assert recipe.rollout is not None
    online = OnlineRun(
        recipe, recipe.rollout, journal, store, cast(Any, agents), cast(Any, learning), Phases(),
        [Task(id="t1", input="x")], (), tmp_path, shown.append, 0, tmp_path / "logs",
    )  # fmt: skip
    return online, agents, shown


def test_a_wave_of_trusted_senders_is_complete_and_has_its_alarms(
    tmp_path: Path,
) -> None:
    source = {"run": "demo", "trust": ["ingest"]}
    more = {"source": source, "rollout": ROLLOUT, "train": {"updates": 1, "span_timeout": 300.0}}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | more)
    scene = Scene()
    train_wave(scene)
    journal = Journal(folder=tmp_path / "run", run="demo", recipe="r", policy="sql", base=0)
    version = add_policy(tmp_path)
    with Store.open(f"chdb://{tmp_path}/store") as store:
        store.migrate()
        insert_otlp(store, sent(scene, "ingest"))
        online, agents, shown = start_run(tmp_path, store, recipe, journal, Learning(tmp_path))
        online.run()
    [wave] = shown
    assert agents.finished == [{rollout.rollout for rollout in scene.attempts}]
    assert (wave.outcomes, wave.evaluations) == ({"ok": 16}, {"reward": 0.5})
    assert wave.score == 0.5
    assert wave.seconds["settle"] < 150
    manifest = Dataset.open(tmp_path / "datasets" / "demo" / "train-0").manifest
    assert manifest["base"] == version.base_digests()
    [alarm] = wave.alarms
    assert "dropped as `constrained` have low rewards (mean 0.00, others 0.80" in alarm


def test_a_wave_whose_rollouts_all_failed_ends_the_run_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: NOON + 5_400_000 * MS)
    source = {"run": "demo", "trust": ["ingest"]}
    more = {"source": source, "rollout": ROLLOUT, "train": {"updates": 1, "span_timeout": 300.0}}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | more)
    scene = Scene()
    for sample in range(16):
        rollout = scene.attempt(sample=sample)
        rollout.dispatch()
        timeout = sample == 3
        reason = "still running after 60 s" if timeout else f"KeyError: 'gold{sample}'"
        rollout.close("timeout" if timeout else "error", reason=reason)
    journal = Journal(folder=tmp_path / "run", run="demo", recipe="r", policy="sql", base=0)
    add_policy(tmp_path)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "worker-1.log").write_text("Traceback\nKeyError: 'gold0'\n")
    with Store.open(f"chdb://{tmp_path}/store") as store:
        store.migrate()
        insert_otlp(store, sent(scene, "ingest"))
        online, agents, shown = start_run(tmp_path, store, recipe, journal, Learning(tmp_path))
        with pytest.raises(RolloutsFailed, match="Every rollout of wave train 0 failed") as failed:
            online.run()
    sentence = str(failed.value)
    assert "16 of 16 rollouts failed, 15 of them as error: KeyError: 'gold" in sentence
    assert "task 't1'. Log: " in sentence and "logs/worker-1.log\n" in sentence
    assert shown == []
    with Store.open(f"chdb://{tmp_path}/store") as store:
        # the second attempt at sample 8 has ended, and the run was stopped after it
        insert_otlp(store, sent(train_wave(Scene(), attempt=2, samples=[8]), "ingest"))
        again = Journal.load(tmp_path / "run")
        assert again is not None and again.failed_at
        online, agents, shown = start_run(tmp_path, store, recipe, again, Learning(tmp_path))
        others = train_wave(Scene(), attempt=2, samples=[*range(8), *range(9, 16)])
        agents.work = lambda: insert_otlp(store, sent(others, "ingest"))
        online.run()
    assert agents.finished == [{scene.attempts[8].rollout}]
    [wave] = shown
    assert (wave.outcomes, wave.evaluations, again.failed_at) == ({"ok": 16}, {"reward": 0.5}, 0)
    executions = Dataset.open(tmp_path / "datasets" / "demo" / "train-0").table("executions")
    trained = executions.filter(~pl.col("superseded"))
    assert trained["attempt"].to_list() == [2] * 16


def test_a_validation_that_fails_ends_the_run_only_if_no_rollout_was_ok_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = {"run": "demo", "trust": ["ingest"]}
    train = {"updates": 1, "span_timeout": 300.0}
    more = {"source": source, "rollout": ROLLOUT, "train": train}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | more)
    journal = Journal(folder=tmp_path / "run", run="demo", recipe="r", policy="sql", base=0)
    add_policy(tmp_path)
    scene = train_wave(Scene())
    for wave in range(2):
        rollout = scene.attempt(mode="val", wave=wave)
        rollout.dispatch()
        rollout.close("timeout", reason="still running after 60 s")
    with Store.open(f"chdb://{tmp_path}/store") as store:
        store.migrate()
        insert_otlp(store, sent(scene, "ingest"))
        online, _, shown = start_run(tmp_path, store, recipe, journal, Learning(tmp_path))
        online.validation = online.tasks
        with pytest.raises(RolloutsFailed, match="Every rollout of wave val 0 failed"):
            online.run()
        ok = {"ok": 1}
        journal.add(Wave(mode="val", wave=0, version=0, rollouts=1, outcomes=ok, evaluations={}))
        online.run()
    assert journal.finished
    train_results, val = shown
    assert (train_results.outcomes, train_results.score) == ({"ok": 16}, 0.5)
    assert (val.outcomes, val.evaluations, val.score) == ({"timeout": 1}, {"reward": 0.0}, 0.0)
    assert "1 of 1 rollouts failed, as timeout: still running" in val.failures
    assert "every rollout of wave val 1 failed. 1 of 1 rollouts failed" in caplog.text


def test_an_undone_update_publishes_nothing_and_the_third_in_a_row_ends_the_run(
    tmp_path: Path,
) -> None:
    more = {"rollout": ROLLOUT, "train": {"updates": 9}}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | more)
    journal = Journal(folder=tmp_path / "run", run="demo", recipe="r", policy="sql", base=0)
    add_policy(tmp_path)
    scene = Scene()
    for wave in range(3):
        train_wave(scene, wave)
    with Store.open(f"chdb://{tmp_path}/store") as store:
        store.migrate()
        insert_otlp(store, scene.request())
        learning = Learning(tmp_path, version=None, undone=2)
        online, _, shown = start_run(tmp_path, store, recipe, journal, learning)
        with pytest.raises(NotFinite, match=r"last 3 updates .* still v0\. It was undone"):
            online.run()
    assert [(wave.published, wave.undone, wave.alarms[-1]) for wave in shown] == [
        (None, 2, "It was undone.")
    ] * 3
    assert [(wave.samples, wave.tokens, wave.metrics) for wave in shown] == [
        (0, 0, {"drift_k3": 0.01})
    ] * 3
    assert journal.latest == 0
    assert "  no new version: 2 optimizer steps were undone" in wave_notes(shown[0])


def test_a_continued_run_draws_the_tasks_that_the_killed_one_would_have_drawn(
    tmp_path: Path,
) -> None:
    rollout = {**ROLLOUT, "tasks_per_wave": 3, "domains": {"math": 2, "code": 1}}
    recipe = Recipe.model_validate(
        tomllib.loads(RECIPE)
        | {"rollout": {**rollout, "target_score": 0.5}, "train": {"updates": 3, "span_timeout": 0}}
    )
    tasks = [
        Task(id=f"t{number}", input="x", domain="code" if number % 2 else "math")
        for number in range(12)
    ]
    add_policy(tmp_path)
    scene = Scene()
    for wave in range(3):
        train_wave(scene, wave)
    with Store.open(f"chdb://{tmp_path}/store") as store:
        store.migrate()
        insert_otlp(store, scene.request())
        journal = Journal(folder=tmp_path / "run", run="demo", recipe="r", policy="sql", base=0)
        whole, agents, shown = start_run(tmp_path, store, recipe, journal, Learning(tmp_path))
        whole.tasks = tasks
        whole.run()
        journal.waves = journal.waves[:1]
        journal.save()
        killed = Journal.load(journal.folder)
        assert killed is not None
        learning = Learning(tmp_path)
        rest, again, _ = start_run(tmp_path, store, recipe, killed, learning)
        rest.tasks = tasks
        rest.run()
    assert learning.numbers == [1, 2]
    assert [(wave.drawn, wave.tasks) for wave in shown] == [(3, {"t1": 0.5})] * 3
    assert again.waves == agents.waves[1:]
    domains = {task.id: task.domain for task in tasks}
    assert [sorted(domains[task] for task in wave) for wave in agents.waves] == [
        ["code", "math", "math"]
    ] * 3


@pytest.mark.parametrize(("refill_tasks", "drawn", "groups"), [(0, 3, 2), (1, 4, 2), (3, 5, 3)])
def test_a_wave_draws_more_tasks_for_groups_without_spread_and_counts_their_drops(
    tmp_path: Path, refill_tasks: int, drawn: int, groups: int
) -> None:
    rollout = {**ROLLOUT, "tasks_per_wave": 3, "rollouts_per_task": 4, "refill_tasks": refill_tasks}
    recipe = Recipe.model_validate(
        tomllib.loads(RECIPE) | {"rollout": rollout, "train": {"updates": 1, "span_timeout": 0}}
    )
    add_policy(tmp_path)
    journal = Journal(folder=tmp_path / "run", run="demo", recipe="r", policy="sql", base=0)
    with Store.open(f"chdb://{tmp_path}/store") as store:
        store.migrate()
        online, agents, [*shown] = start_run(tmp_path, store, recipe, journal, Learning(tmp_path))
        online.tasks = [Task(id=f"t{number}", input="x") for number in range(8)]
        order = [task.id for task in random.Random("0/0").sample(online.tasks, 8)]

        def work() -> None:
            scene = Scene()
            for task in agents.waves[-1]:
                equal = order.index(task) in (1, 3)
                for sample in range(4):
                    attempt = scene.attempt(task, sample)
                    attempt.dispatch()
                    attempt.llm()
                    attempt.evaluate(1.0 if equal else float(sample >= 2))
                    attempt.close()
            insert_otlp(store, scene.request())

        agents.work = work
        online.on_wave = shown.append
        online.run()
        if refill_tasks == 3:
            killed = Journal(folder=tmp_path / "2", run="demo", recipe="r", policy="sql", base=0)
            again, others, _ = start_run(tmp_path, store, recipe, killed, Learning(tmp_path))
            again.tasks = online.tasks
            again.run()
            assert others.waves == agents.waves
            assert list(map(len, others.finished)) == [len(wave) * 4 for wave in others.waves]
    [wave] = shown
    assert [task for wave in agents.waves for task in wave] == order[:drawn]
    assert (wave.drawn, wave.rollouts) == (drawn, drawn * 4)
    executions = Dataset.open(tmp_path / "datasets" / "demo" / "train-0").table("executions")
    assert executions.height == drawn * 4
    assert wave.drops == {"no_spread": (drawn - groups) * 4}
