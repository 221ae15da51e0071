"""A followed store: when an update is made, on what, and what happens while there is nothing."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.otlp import insert_otlp, open_empty_store
from tests.train.loop.test_alarms import recorded
from tests.train.loop.test_online import Learning
from tests.train.policy.test_versions import write_model
from tests.transforms.conftest import RECIPE, Scene
from tests.transforms.datasets.test_lineage import add_group

from ltrain_collector.store import Store
from ltrain_train.errors import AlarmRaised, BadJournal, NotFinite
from ltrain_train.loop.watch import Watcher
from ltrain_train.policy import Policies
from ltrain_train.publishing import Look
from ltrain_train.runs.plan import Plan
from ltrain_train.runs.report import Progress
from ltrain_train.updates.stored_traces import (
    OfflineRun,
    TrainingInput,
    remove_datasets,
    run_folder,
)
from ltrain_train.updates.update import Update
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.policy_lineage import write_ledger
from ltrain_transforms.recipe import Recipe

HOUR = 3_600_000_000_000
WATCH = {"executions": 4, "reward_window": 600.0, "poll": 0.01}


class Publishing(Learning):
    """An updater in place of the learner's process, whose versions are on the disk."""

    gateway: object = None
    dies = False
    """Whether it is killed before the next version is current."""

    def update(self, dataset: Dataset, lineage: Any, checkpoints: Path, *_: Any) -> Update:
        update = super().update(dataset, lineage, checkpoints, len(self.numbers))
        if self.version is None:
            return update
        home = self.policies.directory.parent
        draft = write_model(home / f"draft-{lineage.version}", fill=lineage.version)
        write_ledger(draft, dataset.table("samples")["rollout_id"])
        new = self.policies.register_files(
            "sql", draft, parent=lineage.version, dataset=dataset.id, recipe="r", base=0
        )
        if self.dies:
            raise KeyboardInterrupt
        self._publish(new)
        return Update(new, update.report, update.left_out)

    def _publish(self, version: int) -> None:
        self.policies.promote("sql", version)


class Followed:
    """A watch of a store, and what it reported."""

    def __init__(self, home: Path, store: str, learning: Publishing, **more: Any) -> None:
        fields = tomllib.loads(RECIPE) | {"watch": WATCH | more.pop("watch", {}), **more}
        plan = Plan(recipe=Recipe.model_validate(fields), folder=home, home=home)
        self.inputs: list[TrainingInput] = []
        self.runs: list[OfflineRun] = []
        self.looks: list[Look] = []
        self.gate = (True, "the gate is open")
        """The answer of the gates."""
        self.watcher = Watcher(
            plan,
            store,
            self.inputs.append,
            lambda plan, data, run: self.runs.append(run),
            lambda policy, look: self.looks.append(look),
            lambda plan, version: self.gate,
            Progress(enabled=False),
            dict.fromkeys(plan.trained, cast(Any, learning)),
            {name: Policies(home).current(name) for name in plan.trained},
        )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LTRAIN_GATEWAY", "http://127.0.0.1:9")
    Policies(tmp_path).register("sql", write_model(tmp_path / "model"))
    return tmp_path


@pytest.fixture
def scene(home: Path) -> Iterator[Scene]:
    open_empty_store(home / "store").close()
    yield Scene()


def send(home: Path, scene: Scene) -> int:
    """Store the spans; return the end of the last one."""
    with Store.open(f"chdb://{home}/store") as store:
        insert_otlp(store, scene.request())
    return max(span.end for attempt in scene.attempts for span in attempt.spans)


def test_old_spans_go_but_those_that_a_version_was_trained_on(home: Path, scene: Scene) -> None:
    dsn = f"chdb://{home}/store"
    followed = Followed(home, dsn, Publishing(home), watch={"keep_days": 2.0, "executions": 4})
    trained = add_group(scene, (0, 0, 0, 0), task="t1")
    late = send(home, scene) + HOUR
    assert followed.watcher.look(late)
    other = add_group(scene, (1,), task="t2", mode="val")
    send(home, scene)

    def rollouts() -> set[str]:
        with Store.open(dsn) as store:
            found = store.query("SELECT DISTINCT RolloutId FROM otel.spans WHERE RolloutId != ''")
            return set(found["RolloutId"])

    assert rollouts() == {*trained, *other}
    followed.watcher.look(late + 40 * HOUR)
    assert rollouts() == {*trained, *other}, "they are younger than two days"
    followed.watcher.look(late + 50 * HOUR)
    assert rollouts() == set(trained)
    Policies(home).promote("sql", 0)
    Policies(home).remove("sql", 1)
    followed.watcher.look(late + 50 * HOUR + 1)
    assert rollouts() == set(trained), "once an hour"
    followed.watcher.look(late + 51 * HOUR)
    assert rollouts() == set()


def test_an_update_is_made_when_enough_executions_had_time_for_their_rewards(
    home: Path, scene: Scene
) -> None:
    learning = Publishing(home)
    followed = Followed(home, f"chdb://{home}/store", learning)
    look = followed.watcher.look
    add_group(scene, (0, 0, 0, 0), task="t1")
    first = send(home, scene)
    assert not look(first + HOUR // 60), "rewards may arrive for ten minutes"
    assert look(first + HOUR // 4)
    assert [run.version for run in followed.runs] == [1]
    assert not look(first + HOUR // 3), "nothing is new"

    add_group(scene, (1, 1, 1), task="t2", attempt=2)
    second = send(home, scene)
    assert not look(second + HOUR // 4), "three of four executions"
    late = scene.attempt("t2", 3, attempt=2)
    late.dispatch()
    late.llm(gateway={"ltrain.policy.version": 1})
    send(home, scene)
    add_group(scene, (1, 1, 1, 1), task="t3", attempt=2)
    send(home, scene)
    assert look(second + HOUR // 3)
    assert [run.version for run in followed.runs] == [1, 2]
    drops = followed.inputs[-1].selection.dataset.manifest["drops"]
    assert drops["waiting"] == 4, "the group has a rollout that runs"

    late.evaluate(0.5)
    late.close()
    send(home, scene)
    add_group(scene, (2, 2, 2, 2), task="t4", attempt=3)
    third = send(home, scene)
    assert look(third + HOUR // 4)
    trained = followed.runs[-1].dataset.table("samples")["rollout_id"].unique()
    by_task = followed.runs[-1].dataset.table("executions").select("rollout_id", "task_id")
    assert set(by_task.filter(by_task["rollout_id"].is_in(trained.implode()))["task_id"]) == {
        "t2",
        "t4",
    }
    assert learning.numbers == [0, 1, 2]


def add_farmed_group(scene: Scene, number: int) -> None:
    """Add six rollouts, of which one succeeds; the penalty for failed tools rises to zero."""
    for sample in range(6):
        rollout = scene.attempt(f"t{number}", sample, attempt=number + 1)
        rollout.dispatch()
        rollout.llm(gateway={"ltrain.policy.version": number}, response=(4, sample))
        rollout.tool(error="boom" if sample < 5 - number else "")
        rollout.llm("rewrite", (7, 8), (9,), gateway={"ltrain.policy.version": number})
        rollout.evaluate(float(sample == 5))
        rollout.close()


def test_a_watch_stops_on_an_alarm_that_compares_its_updates(home: Path, scene: Scene) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    learning = Publishing(home)
    learning.tracer = provider.get_tracer("ltrain.learner")
    store, train = f"chdb://{home}/store", {"stop_on": ["divergence"]}
    followed = Followed(home, store, learning, train=train, watch={"executions": 6})
    for number in range(5):
        add_farmed_group(scene, number)
        assert followed.watcher.look(send(home, scene) + HOUR // 4)
    add_farmed_group(scene, 5)
    again = Followed(home, store, learning, train=train, watch={"executions": 6})
    with pytest.raises(AlarmRaised, match=r"The watch stopped, .* wave 6: `tool-failed` rose in"):
        again.watcher.look(send(home, scene) + HOUR // 4)
    [alarm] = again.runs[0].alarms
    assert (alarm.key, alarm.since, Policies(home).current("sql")) == (
        ("divergence", "tool-failed"),
        1,
        6,
    )
    assert recorded(exporter) == [("demo", "train", 6, "sql", 5, "divergence")]
    assert not any(run.alarms for run in followed.runs)


def test_figures_that_cannot_be_read_are_named_before_the_training(
    home: Path, scene: Scene
) -> None:
    add_group(scene, (0, 0, 0, 0), task="t1")
    learning = Publishing(home)
    followed = Followed(home, f"chdb://{home}/store", learning)
    folder = run_folder(followed.watcher.plan.for_policy("sql"), "once")
    folder.mkdir(parents=True)
    (folder / "updates.json").write_text('[{"until": "late"}]')
    with pytest.raises(BadJournal, match=r"updates.json cannot be read: 0.until: .* Move it away"):
        followed.watcher.look(send(home, scene) + HOUR // 4)
    assert not learning.numbers


def test_a_recipe_that_selects_nothing_is_explained_once(
    home: Path, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    add_group(scene, (0, 0, 0, 0), task="t1")
    end = send(home, scene)
    source = {"run": "demmo"}
    followed = Followed(home, f"chdb://{home}/store", Publishing(home), source=source)
    assert not followed.watcher.look(end + HOUR)
    assert not followed.watcher.look(end + 2 * HOUR)
    [message] = caplog.messages
    assert "no execution has ended yet. " in message
    assert "run 0" in message and "Runs in the store: demo." in message


def test_a_new_watch_trains_on_nothing_twice(home: Path, scene: Scene) -> None:
    add_group(scene, (0, 0, 0, 0), task="t1")
    end = send(home, scene)
    store = f"chdb://{home}/store"
    assert Followed(home, store, Publishing(home)).watcher.look(end + HOUR)
    again = Followed(home, store, Publishing(home))
    assert again.watcher.look(end + HOUR)
    assert (len(again.inputs), again.runs) == (1, [])
    assert dict(again.inputs[0].selection.left_out.reasons) == {"consumed": 4}
    old = Followed(home, store, Publishing(home), watch={"history": 60.0})
    assert not old.watcher.look(end + HOUR), "it is older than the history"


def kill_in_a_publication(home: Path, scene: Scene) -> int:
    """Kill a watch before its first version is current; return the time of the last span."""
    add_group(scene, (0, 0, 0, 0), task="t1")
    end = send(home, scene)
    killed = Followed(home, f"chdb://{home}/store", dying := Publishing(home))
    dying.dies = True
    with pytest.raises(KeyboardInterrupt):
        killed.watcher.look(end + HOUR // 4)
    return end


def test_a_version_that_a_kill_left_before_it_was_current_does_not_stop_the_next_watch(
    home: Path, scene: Scene
) -> None:
    kill_in_a_publication(home, scene)
    assert (Policies(home).versions("sql"), Policies(home).current("sql")) == ([0, 1], 0)

    add_group(scene, (0, 0, 0, 0), task="t2", attempt=2)
    end = send(home, scene)
    again = Followed(home, f"chdb://{home}/store", Publishing(home))
    assert again.watcher.look(end + HOUR // 4)
    [run] = again.runs
    assert (run.version, Policies(home).read_version("sql", 2).parent) == (2, 0)
    assert run.dataset.table("samples")["rollout_id"].n_unique() == 8
    assert ids(home / "datasets" / "demo") == {
        "train-sql@0": Policies(home).read_version("sql", 1).dataset,
        "train-sql@0.2": run.dataset.id,
    }
    remove_datasets(again.watcher.plan.for_policy("sql"), [0])
    assert ids(home / "datasets" / "demo") == {}


def ids(folder: Path) -> dict[str, str]:
    """Return the ids of the datasets in a folder."""
    return {path.name: Dataset.open(path).id for path in sorted(folder.iterdir())}


def test_a_version_that_another_process_makes_current_does_not_change_what_is_trained(
    home: Path, scene: Scene
) -> None:
    """The gateway may finish the publication of a watch that was killed."""
    end = kill_in_a_publication(home, scene)
    again = Followed(home, f"chdb://{home}/store", Publishing(home))
    Policies(home).promote("sql", 1)
    assert again.watcher.look(end + HOUR // 4)
    assert Policies(home).read_version("sql", 2).parent == 0, "the learner has the weights of v0"


def test_versions_and_their_datasets_are_removed(home: Path, scene: Scene) -> None:
    followed = Followed(home, f"chdb://{home}/store", Publishing(home), train={"keep_versions": 1})
    for number in range(4):
        add_group(scene, (number,) * 4, task=f"t{number}", attempt=number + 1)
        assert followed.watcher.look(send(home, scene) + HOUR // 4)
    assert Policies(home).versions("sql") == [0, 3, 4]
    folders = sorted(path.name for path in (home / "datasets" / "demo").iterdir())
    assert folders == ["train-sql@0", "train-sql@3"]


TWO_POLICIES = [
    {"name": "sql", "agents": ["write"]},
    {"name": "rewriter", "agents": ["rewrite"]},
]


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"policy": TWO_POLICIES}, marks=pytest.mark.nightly)],
    ids=["one", "two policies"],
)
def test_the_third_undone_update_of_a_policy_ends_the_watch(
    home: Path, scene: Scene, caplog: pytest.LogCaptureFixture, more: dict[str, Any]
) -> None:
    Policies(home).register("rewriter", write_model(home / "rewriter"))
    learning = Publishing(home, version=None, undone=1)
    followed = Followed(home, f"chdb://{home}/store", learning, **more)
    for number in range(3):
        add_group(scene, (0,) * 4, task=f"t{number}", attempt=number + 1)
        now = send(home, scene) + HOUR // 4
        if number < 2:
            assert followed.watcher.look(now)
            assert "No version was published. It was undone." in caplog.messages[-1]
    with pytest.raises(NotFinite, match="No version was published"):
        followed.watcher.look(now)


def test_a_store_that_is_away_is_awaited(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed, pauses = Followed(home, "http://127.0.0.1:9", Publishing(home)), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        "ltrain_train.loop.watch.time", SimpleNamespace(sleep=pause, time_ns=lambda: HOUR)
    )
    with pytest.raises(KeyboardInterrupt):
        followed.watcher.run({}, {})
    assert pauses == [0.01] * 3
    [message] = [each for each in caplog.messages if "waiting for the store" in each]
    assert "127.0.0.1:9" in message
