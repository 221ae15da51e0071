"""The waves of an online run: what it reads from the store, and what its journal records."""

import random
import time
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
from opentelemetry.trace import NoOpTracer, Tracer
from tests.otlp import insert_otlp, open_empty_store
from tests.property_examples import examples
from tests.security.test_trust import sent
from tests.train.runs.ends import StoredEnds
from tests.train.runs.journals import new_journal, record_wave
from tests.transforms.conftest import MS, NOON, RECIPE, Scene

from ltrain_collector.store import Store
from ltrain_train.errors import BadRun, NotFinite, RolloutsFailed
from ltrain_train.gateway import GatewayUnreachable
from ltrain_train.learner import StepReport
from ltrain_train.loop.generation import Generation
from ltrain_train.loop.online import OnlineRun
from ltrain_train.loop.policy_run import PolicyRun
from ltrain_train.policy import Policies
from ltrain_train.rollout import Task
from ltrain_train.runs.journal import Dispatched, Journal, Wave
from ltrain_train.runs.report import Phases, Progress, wave_notes
from ltrain_train.runs.waves import WaveRun
from ltrain_train.updates.training_rows import LeftOut
from ltrain_train.updates.update import Update
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.file_digests import FileDigest
from ltrain_transforms.policy_file import PolicyVersion
from ltrain_transforms.recipe import Recipe

ROLLOUT = {"tasks": "t.jsonl", "agent": "a:b", "reward": "c:d", "rollouts_per_task": 16}


@dataclass
class Agents:
    """A fake runner, whose rollouts are already in the store."""

    log: StoredEnds
    finished: list[set[str]] = field(default_factory=list)
    waves: list[list[str]] = field(default_factory=list)
    """The ids of the tasks of each dispatch."""
    sampling: list[Mapping[str, Mapping[str, float]]] = field(default_factory=list)
    """The sampling of each policy, of each dispatch."""
    work: Callable[[], object] = lambda: None
    """What happens while it runs."""
    open_groups: set[tuple[str, int, str]] = field(default_factory=set)
    open_rollouts = 0
    slow: set[tuple[str, int, str]] = field(default_factory=set)
    """Groups that end only where the others are not enough."""
    ended: set[tuple[str, int, str]] = field(default_factory=set)
    """The groups that ended in the latest call."""
    stopped: bool = False

    def dispatch(
        self, mode: str, wave: int, tasks: Sequence[Task], *_: Any, finished: Collection[str],
        policy_sampling: Mapping[str, Mapping[str, float]], **__: Any,
    ) -> None:  # fmt: skip
        self.finished.append(set(finished))
        self.waves.append([task.id for task in tasks])
        self.sampling.append(policy_sampling)
        self.open_groups |= {(mode, wave, task.id) for task in tasks}

    def wait(self, *, enough_groups: int | None, **_: Any) -> None:
        quick = self.open_groups - self.slow
        waits_for_slow = enough_groups is None or enough_groups > len(quick)
        self.ended = self.open_groups if waits_for_slow else quick
        self.open_groups = self.open_groups - self.ended
        self.work()

    def stop(self) -> None:
        self.stopped = True


class Learning:
    """A fake updater in place of the learner's process."""

    learner = SimpleNamespace(base=0)
    recipe: Recipe
    tracer: Tracer = NoOpTracer()

    def __init__(
        self, home: Path, policy: str = "sql", *, version: int | None = 1, undone: int = 0
    ) -> None:
        self.policies, self.policy, self.version = Policies(home), policy, version
        self.phases = Phases()
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


def add_policy(home: Path, policy: str = "sql") -> PolicyVersion:
    """Write version 0 of a policy, without weights, and return its manifest."""
    base = home / "policies" / policy / "v0"
    base.mkdir(parents=True)
    files = {"config.json": FileDigest(size=2, sha256="c0")}
    version = PolicyVersion(policy=policy, version=0, created=0, files=files)
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


ONE = [Task(id="t1", input="x")]
EIGHT = [Task(id=f"t{number}", input="x") for number in range(1, 9)]


def start_run(
    tmp_path: Path,
    store: Store,
    recipe: Recipe,
    journal: Journal,
    *learning: Learning,
    tasks: Sequence[Task] = ONE,
    validation: Sequence[Task] = (),
    test: Sequence[Task] = (),
) -> tuple[OnlineRun, Agents, list[Wave]]:
    """Return a run with an updater for each policy, its agents, and the waves that it will show."""
    agents, shown = Agents(StoredEnds(store)), list[Wave]()
    assert recipe.rollout is not None
    for each in learning:
        each.recipe = recipe.for_policy(each.policy)
    policies = [
        PolicyRun(
            journal=journal,
            store=store,
            updater=cast(Any, each),
            home=tmp_path,
            folder=tmp_path,
            show=lambda text: None,
            version=journal.of(each.policy).latest,
        )
        for each in learning
    ]
    generation = Generation(
        waves=WaveRun(
            recipe=recipe,
            journal=journal,
            store=store,
            runner=cast(Any, agents),
            logs=tmp_path / "logs",
            train_samples=recipe.rollout.rollouts_per_task,
        ),
        rewards={each.name: each.recipe.reward for each in policies},
        tasks=tasks,
        held_out={"val": validation, "test": test},
        versions=lambda: {each.name: each.version for each in policies},
        progress=Progress(enabled=False),
    )
    learners: Any = SimpleNamespace(wait=lambda: None)
    online = OnlineRun(
        train=recipe.train,
        journal=journal,
        policies=policies,
        learners=learners,
        generation=generation,
        on_wave=shown.append,
        notify=print,
    )
    return online, agents, shown


def test_a_wave_of_trusted_senders_is_complete_and_has_its_alarms(
    tmp_path: Path,
) -> None:
    source = {"run": "demo", "trust": ["ingest"]}
    more = {"source": source, "rollout": ROLLOUT, "train": {"updates": 1, "span_timeout": 300.0}}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | more)
    scene = Scene()
    train_wave(scene)
    journal = new_journal(tmp_path / "run")
    version = add_policy(tmp_path)
    with open_empty_store(tmp_path / "store") as store:
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
    lost, selective = wave.alarms
    assert wave.raised == (("drops", "constrained"), ("selective_drops", "constrained"))
    assert "38% of the rollouts lost calls as `constrained`" in lost
    assert "dropped as `constrained` have low rewards (mean 0.00, others 0.80" in selective


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
    journal = new_journal(tmp_path / "run")
    add_policy(tmp_path)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "worker-1.log").write_text("Traceback\nKeyError: 'gold0'\n")
    with open_empty_store(tmp_path / "store") as store:
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
        assert again is not None and again.repeated
        online, agents, shown = start_run(tmp_path, store, recipe, again, Learning(tmp_path))
        others = train_wave(Scene(), attempt=2, samples=[*range(8), *range(9, 16)])
        agents.work = lambda: insert_otlp(store, sent(others, "ingest"))
        online.run()
    assert agents.finished == [{scene.attempts[8].rollout}]
    [wave] = shown
    assert (wave.outcomes, wave.evaluations) == ({"ok": 16}, {"reward": 0.5})
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
    journal = new_journal(tmp_path / "run")
    add_policy(tmp_path)
    scene = train_wave(Scene())
    for wave in range(2):
        rollout = scene.attempt(mode="val", wave=wave)
        rollout.dispatch()
        rollout.close("timeout", reason="still running after 60 s")
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, sent(scene, "ingest"))
        learning = Learning(tmp_path)
        online, _, _ = start_run(tmp_path, store, recipe, journal, learning, validation=ONE)
        with pytest.raises(RolloutsFailed, match="Every rollout of wave val 0 failed"):
            online.run()
        ok: Any = {"rollouts": 1, "outcomes": {"ok": 1}, "evaluations": {}}
        record_wave(journal, Wave(policy="sql", mode="val", wave=0, version=0, **ok))
        online, _, shown = start_run(tmp_path, store, recipe, journal, learning, validation=ONE)
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
    journal = new_journal(tmp_path / "run")
    add_policy(tmp_path)
    scene = Scene()
    for wave in range(3):
        train_wave(scene, wave)
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        learning = Learning(tmp_path, version=None, undone=2)
        online, _, shown = start_run(tmp_path, store, recipe, journal, learning)
        with pytest.raises(
            NotFinite, match=r"last 3 updates of .sql. were .* still v0\. It was undone"
        ):
            online.run()
    assert [(wave.published, wave.undone, wave.alarms[-1]) for wave in shown] == [
        (None, 2, "It was undone.")
    ] * 3
    assert [(wave.samples, wave.tokens, wave.metrics) for wave in shown] == [
        (0, 0, {"drift_k3": 0.01})
    ] * 3
    assert journal.latest == {"sql": 0}
    assert "  no new version: 2 optimizer steps undone" in wave_notes(shown[0])


def add_drawn_groups(store: Store, agents: Agents, done: set[tuple[int, str]]) -> None:
    """Store two rollouts, one of them rewarded, of each ended training group that has none."""
    scene = Scene()
    for mode, wave, task in sorted(agents.ended):
        if mode == "train" and (wave, task) not in done:
            done.add((wave, task))
            for sample in range(2):
                rollout = scene.attempt(task, sample, wave=wave)
                rollout.dispatch()
                rollout.llm()
                rollout.evaluate(float(sample == 0 or task.endswith("0")))
                rollout.close()
    if scene.attempts:
        insert_otlp(store, scene.request())


def test_a_continued_run_draws_the_tasks_that_the_killed_one_would_have_drawn(
    tmp_path: Path,
) -> None:
    rollout = {**ROLLOUT, "rollouts_per_task": 2, "tasks_per_wave": 3, "target_score": 0.5}
    rollout["domains"] = {"math": 2, "code": 1}
    recipe = Recipe.model_validate(
        tomllib.loads(RECIPE) | {"rollout": rollout, "train": {"updates": 3, "span_timeout": 0}}
    )
    tasks = [
        Task(id=f"t{number}", input="x", domain="code" if number % 2 else "math")
        for number in range(12)
    ]
    add_policy(tmp_path)
    done = set[tuple[int, str]]()
    with open_empty_store(tmp_path / "store") as store:
        journal = new_journal(tmp_path / "run")
        learning = Learning(tmp_path)
        whole, agents, shown = start_run(tmp_path, store, recipe, journal, learning, tasks=tasks)
        agents.work = lambda: add_drawn_groups(store, agents, done)
        whole.run()
        lines = journal.path.read_text().splitlines(keepends=True)
        end = next(n for n, line in enumerate(lines) if '"published"' in line)
        journal.path.write_text("".join(lines[: end + 1]))
        killed = Journal.load(journal.folder)
        assert killed is not None
        learning = Learning(tmp_path)
        rest, again, _ = start_run(tmp_path, store, recipe, killed, learning, tasks=tasks)
        rest.run()
    assert learning.numbers == [1, 2]
    assert [wave.rollouts for wave in shown] == [6] * 3
    assert again.waves == agents.waves[1:]
    domains = {task.id: task.domain for task in tasks}
    assert [sorted(domains[task] for task in wave) for wave in agents.waves] == [
        ["code", "math", "math"]
    ] * 3


def spare_recipe(**more: Any) -> Recipe:
    """Return a recipe of two groups of two rollouts and two spare ones, with four updates."""
    rollout = {**ROLLOUT, "rollouts_per_task": 2, "tasks_per_wave": 2, "spare_tasks": 2}
    train = {"updates": 4, "span_timeout": 0, **more}
    return Recipe.model_validate(tomllib.loads(RECIPE) | {"rollout": rollout, "train": train})


def trained_groups(home: Path, journal: Journal) -> list[list[tuple[int, str]]]:
    """Return the groups of each wave's dataset, which are those of the journal."""
    groups = []
    for number in range(journal.updates):
        dataset = Dataset.open(home / "datasets" / "demo" / f"train-{number}")
        built = dataset.table("executions").select("wave", "task_id").unique().rows()
        assert sorted(built) == journal.completed["train", number].groups
        groups.append(sorted(built))
    return groups


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.nightly), "async"])
def test_a_slow_group_ends_in_the_next_wave_and_every_group_is_trained_once(
    tmp_path: Path, mode: str
) -> None:
    add_policy(tmp_path)
    journal = new_journal(tmp_path / "run")
    with open_empty_store(tmp_path / "store") as store:
        online, agents, shown = start_run(
            *(tmp_path, store, spare_recipe(mode=mode), journal, Learning(tmp_path)), tasks=EIGHT
        )
        done = set[tuple[int, str]]()

        order = [task.id for task in random.Random("0/0").sample(EIGHT, 8)]
        agents.slow = {("train", 0, order[0])}
        agents.work = lambda: add_drawn_groups(store, agents, done)
        online.run()
    waves = trained_groups(tmp_path, journal)
    assert [len(wave) for wave in waves] == [2, 2, 2, 2]
    assert len({group for wave in waves for group in wave}) == 8
    assert (0, order[0]) in waves[1], "a window of four places holds the next wave back"
    assert [wave.rollouts for wave in shown] == [4] * 4
    assert list(map(len, agents.waves)) == [4, 2, 2]
    assert agents.stopped


def test_a_run_that_is_killed_after_any_event_trains_every_group_once(tmp_path: Path) -> None:
    recipe = spare_recipe(mode="async", updates=3)  # the first waves, one between, the last ones
    add_policy(tmp_path)
    done = set[tuple[int, str]]()
    with open_empty_store(tmp_path / "store") as store:

        def run(journal: Journal) -> Agents:
            online, agents, _ = start_run(
                *(tmp_path, store, recipe, journal, Learning(tmp_path)),
                tasks=EIGHT,
            )
            agents.work = lambda: add_drawn_groups(store, agents, done)
            online.run()
            return agents

        whole = new_journal(tmp_path / "run")
        run(whole)
        lines = whole.path.read_bytes().splitlines(keepends=True)
        expected = trained_groups(tmp_path, whole)
        for kept in range(1, len(lines), 4 // examples(4, change=1)):
            folder = tmp_path / f"killed-{kept}"
            folder.mkdir()
            (folder / "journal.jsonl").write_bytes(b"".join(lines[:kept]))
            killed = Journal.load(folder)
            assert killed is not None
            agents = run(killed)
            assert [killed.completed["train", wave].groups for wave in range(3)] == expected
            assert killed.finished and killed.updates == 3
            assert all(len(each) % 2 == 0 for each in agents.finished)


def test_an_asynchronous_run_samples_the_next_wave_before_it_trains(tmp_path: Path) -> None:
    add_policy(tmp_path)
    journal = new_journal(tmp_path / "run")
    with open_empty_store(tmp_path / "store") as store:
        learning = Learning(tmp_path)
        online, agents, _ = start_run(
            *(tmp_path, store, spare_recipe(mode="async"), journal, learning), tasks=EIGHT
        )
        done = set[tuple[int, str]]()
        agents.work = lambda: add_drawn_groups(store, agents, done)
        sampled: list[int] = []
        update = learning.update

        def train(*arguments: Any) -> Update:
            number = len(sampled)
            deadline = time.monotonic() + 60
            while number < 3 and ("train", number + 1) not in journal.evaluated:
                assert time.monotonic() < deadline, "the next wave does not run meanwhile"
                time.sleep(0.01)
            sampled.append(max(wave for _, wave in journal.evaluated))
            return update(*arguments)

        learning.update = train  # type: ignore[method-assign, assignment]
        online.run()
    assert sampled == [1, 2, 3, 3]


def test_an_error_of_the_rollouts_ends_the_run_with_that_error(tmp_path: Path) -> None:
    add_policy(tmp_path)
    journal = new_journal(tmp_path / "run")
    with open_empty_store(tmp_path / "store") as store:
        online, agents, _ = start_run(
            *(tmp_path, store, spare_recipe(), journal, Learning(tmp_path)), tasks=EIGHT
        )

        def fail() -> None:
            raise GatewayUnreachable("no gateway")

        agents.work = fail
        with pytest.raises(GatewayUnreachable, match="no gateway"):
            online.run()
    assert agents.stopped
    assert [each.event for each in journal.events] == ["dispatched"]


def test_a_task_that_a_run_has_begun_and_the_file_lacks_is_named(tmp_path: Path) -> None:
    add_policy(tmp_path)
    journal = new_journal(tmp_path / "run")
    journal.add(Dispatched(mode="train", wave=0, tasks=("t1", "gone")))
    with open_empty_store(tmp_path / "store") as store:
        online, _, _ = start_run(tmp_path, store, spare_recipe(), journal, Learning(tmp_path))
        with pytest.raises(BadRun, match=r"wave 0 with task 'gone', which t\.jsonl no longer has"):
            online.run()


@pytest.mark.parametrize(("refill_tasks", "drawn", "groups"), [(0, 3, 2), (1, 4, 2), (3, 5, 3)])
def test_a_wave_draws_more_tasks_for_groups_without_spread_and_counts_their_drops(
    tmp_path: Path, refill_tasks: int, drawn: int, groups: int
) -> None:
    rollout = {**ROLLOUT, "tasks_per_wave": 3, "rollouts_per_task": 4, "refill_tasks": refill_tasks}
    recipe = Recipe.model_validate(
        tomllib.loads(RECIPE) | {"rollout": rollout, "train": {"updates": 1, "span_timeout": 0}}
    )
    add_policy(tmp_path)
    journal = new_journal(tmp_path / "run")
    with open_empty_store(tmp_path / "store") as store:
        learning = Learning(tmp_path)
        online, agents, shown = start_run(tmp_path, store, recipe, journal, learning, tasks=EIGHT)
        order = [task.id for task in random.Random("0/0").sample(EIGHT, 8)]

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
        online.run()
        if refill_tasks == 3:
            killed = new_journal(tmp_path / "2")
            again, others, _ = start_run(tmp_path, store, recipe, killed, learning, tasks=EIGHT)
            again.run()
            assert others.waves == agents.waves
            assert list(map(len, others.finished)) == [len(wave) * 4 for wave in others.waves]
    [wave] = shown
    assert [task for wave in agents.waves for task in wave] == order[:drawn]
    assert wave.rollouts == drawn * 4
    executions = Dataset.open(tmp_path / "datasets" / "demo" / "train-0").table("executions")
    assert executions.height == drawn * 4
    assert wave.drops == {"no_spread": (drawn - groups) * 4}


def test_a_run_updates_each_policy_on_its_own_calls_and_goes_on_between_them(
    tmp_path: Path,
) -> None:
    policies: list[dict[str, Any]]
    policies = [{"name": name, "rewards": [name]} for name in ("sql", "critic")]
    policies[1]["sampling"] = {"temperature": 0.5}
    rewards = [{"name": name, "evaluation": "reward", "weight": 1.0} for name in ("sql", "critic")]
    rewards[1]["weight"] = -1.0
    more = {"policy": policies, "reward": rewards, "rollout": ROLLOUT}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | more | {"train": {"updates": 1}})
    for name in ("sql", "critic"):
        add_policy(tmp_path, name)
    starts = {"sql": 0, "critic": 0}
    journal = Journal(folder=tmp_path / "run", run="demo", recipe="r", policies=starts)
    journal.start()
    scene = Scene()
    for sample in range(16):
        rollout = scene.attempt(sample=sample)
        rollout.dispatch()
        for policy in ("sql", "critic"):
            rollout.llm(gateway={"ltrain.policy.name": policy})
        rollout.evaluate(float(sample >= 8))
        rollout.close()
    sql, critic = Learning(tmp_path, "sql"), Learning(tmp_path, "critic")
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        online, agents, shown = start_run(tmp_path, store, recipe, journal, sql, critic)
        online.run()
        lines = journal.path.read_bytes().splitlines(keepends=True)
        end = next(n for n, line in enumerate(lines) if b'"published"' in line)
        journal.path.write_bytes(b"".join(lines[: end + 1]))
        killed = Journal.load(journal.folder)
        assert killed is not None and killed.updates == 0
        again, others, rest = start_run(tmp_path, store, recipe, killed, sql, critic)
        again.run()
    assert [(wave.policy, wave.score, wave.published) for wave in shown] == [
        ("sql", 0.5, 1),
        ("critic", -0.5, 1),
    ]
    sampled = {policy: each["temperature"] for policy, each in agents.sampling[0].items()}
    assert sampled == {"sql": 1.0, "critic": 0.5}
    assert [wave.policy for wave in rest] == ["critic"]
    assert (sql.numbers, critic.numbers, others.waves) == ([0], [0, 0], [])
    for name, sign in (("sql", 1), ("critic", -1)):
        dataset = Dataset.open(tmp_path / "datasets" / "demo" / f"train-0-{name}")
        assert dataset.table("samples")["policy"].unique().to_list() == [name]
        assert dataset.table("executions").height == 16
        assert dataset.table("rewards")["value"].sum() == 8.0 * sign
