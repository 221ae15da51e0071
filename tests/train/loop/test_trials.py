"""`ltrain run --watch` with `[deploy]`: a version on trial is judged before the next one."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.train.loop.test_watch import HOUR, Followed, Publishing, send
from tests.train.loop.test_watch import home as home  # a fixture
from tests.train.loop.test_watch import scene as scene  # a fixture
from tests.transforms.conftest import Scene
from tests.transforms.datasets.test_lineage import add_group
from tests.transforms.trials.test_stored import Calls

from ltrain_collector.store import Store
from ltrain_train.errors import BadRun, RunInUse
from ltrain_train.loop import command
from ltrain_train.policy import Deployments, Policies
from ltrain_transforms.deployment_file import (
    Deployment,
    Stage,
    read_deployments,
    record_deployment,
)
from ltrain_transforms.trials import read_metrics

DEPLOY = {"share": 0.5, "goal": "thumbs", "max_loss": 0.1, "reward_window": 0.0}
ADAPTERS = {"lora_rank": 8}


class Trying(Publishing):
    """An updater whose versions begin as canaries, of a trial with a known id."""

    def _publish(self, version: int) -> None:
        begun = Deployment.begin(version, 0.5, by="ltrain")
        trial = begun.model_copy(update={"experiment": "trial"})
        record_deployment(self.policies.directory / "sql", trial)


def follow(home: Path, **deploy: Any) -> Followed:
    more: dict[str, Any] = {"deploy": DEPLOY | deploy, "train": ADAPTERS}
    return Followed(home, f"chdb://{home}/store", Trying(home), **more)


def train(followed: Followed, home: Path, scene: Scene, task: str, attempt: int = 1) -> int:
    """Make an update on a new group, if the watch makes one; return the time of the look."""
    add_group(scene, (0, 0, 0, 0), task=task, attempt=attempt)
    now = send(home, scene) + HOUR // 4
    followed.watcher.look(now)
    return now


def answer(home: Path, good: float, trial: str = "trial") -> None:
    """Store calls of the trial; of the candidate's a share is good, of the others half."""
    calls = Calls(trial)
    for unit in range(300):
        calls.call("candidate", f"a{unit}", float(unit / 300 < good))
        calls.call("current", f"b{unit}", float(unit < 150))
    with Store.open(f"chdb://{home}/store") as store:
        calls.insert(store)


def stages(home: Path) -> list[tuple[int, str]]:
    return [(each.version, each.stage) for each in read_deployments(home / "policies" / "sql")]


def test_a_promoted_version_is_watched_before_the_next_update(
    home: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow(home)
    train(followed, home, scene, "t1")
    assert (stages(home), Policies(home).current("sql")) == ([(1, "canary")], 0)

    now = train(followed, home, scene, "t2", 2)
    assert (len(followed.runs), followed.looks) == (1, []), "it is on trial"

    answer(home, 0.9)
    followed.watcher.look(now)
    assert followed.looks[0].sentence.startswith("v1 of policy 'sql' is watched: thumbs is better")
    followed.watcher.look(now)
    assert (len(followed.looks), len(followed.runs)) == (1, 1)

    later = SimpleNamespace(time=lambda: time.time() + 3600, time_ns=time.time_ns)
    monkeypatch.setattr("ltrain_train.publishing.deploy_decision.time", later)
    followed.watcher.look(now)
    assert stages(home) == [(1, "canary"), (1, "watched"), (1, "current"), (2, "canary")]
    assert Policies(home).read_version("sql", 2).parent == 1


def test_after_a_version_was_taken_back_the_current_one_is_trained_on_new_executions(
    home: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow(home)
    now = train(followed, home, scene, "t1")
    answer(home, 0.1)
    clock = SimpleNamespace(sleep=lambda _: None, time_ns=lambda: now)
    monkeypatch.setattr("ltrain_train.loop.watch.time", clock)
    followed.watcher.run(followed.watcher.updaters, {"sql": 1})
    assert stages(home) == [(1, "canary"), (1, "retired")]

    followed.watcher.versions = {"sql": 0}
    train(followed, home, scene, "t2", 2)
    run = followed.runs[-1]
    assert (run.version, Policies(home).read_version("sql", 2).parent) == (2, 0)
    tasks = run.dataset.table("samples")["rollout_id"].n_unique()
    assert tasks == 4, "what made version 1 is not trained on again"


@pytest.mark.parametrize("by_gate", [False, True])
def test_a_version_that_was_taken_back_at_once_is_not_trained_on(
    home: Path, scene: Scene, by_gate: bool
) -> None:
    followed = follow(home)
    folder = home / "policies" / "sql"
    now = train(followed, home, scene, "t1")
    if by_gate:
        (folder / "deployments.jsonl").unlink()
        record_deployment(folder, Deployment.begin(1, by="ltrain", stage=Stage.CANDIDATE))
        followed.gate = (False, "it is worse")
    else:
        record_deployment(folder, read_deployments(folder)[-1].move(Stage.RETIRED, by="ada"))
    followed.watcher.look(now)
    assert followed.watcher._outdated, "the learner has the weights of version 1"


def test_a_command_beside_the_watch_may_end_a_trial(
    home: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow(home)
    now = train(followed, home, scene, "t1")
    answer(home, 0.9)
    folder = home / "policies" / "sql"

    def stop_and_read(*arguments: Any) -> Any:
        record_deployment(folder, read_deployments(folder)[-1].move(Stage.RETIRED, by="ada"))
        return read_metrics(*arguments)

    monkeypatch.setattr("ltrain_train.publishing.deploy_decision.read_metrics", stop_and_read)
    followed.watcher.look(now)
    assert stages(home) == [(1, "canary"), (1, "retired")]
    assert followed.looks == []


def test_a_person_is_asked_once(home: Path, scene: Scene) -> None:
    followed = follow(home, approve="manual")
    now = train(followed, home, scene, "t1")
    answer(home, 0.9)
    followed.watcher.look(now)
    followed.watcher.look(now)
    [look] = followed.looks
    assert look.asks and "may be promoted: thumbs is better" in look.sentence
    assert stages(home) == [(1, "canary")]


def test_a_frozen_policy_is_not_trained(
    home: Path, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    followed = follow(home)
    deployments = Deployments(Policies(home), "sql")
    deployments.freeze("ada", "an incident")
    now = train(followed, home, scene, "t1")
    followed.watcher.look(now)
    assert followed.runs == []
    [message] = [each for each in caplog.messages if "frozen" in each]
    assert message == "ltrain: no update is made while 'sql' is frozen"
    deployments.thaw()
    followed.watcher.look(now)
    assert len(followed.runs) == 1


@pytest.mark.parametrize(("passes", "stage"), [(True, "canary"), (False, "retired")])
def test_a_candidate_answers_nobody_before_it_has_passed_the_gates(
    home: Path, scene: Scene, passes: bool, stage: str
) -> None:
    followed = follow(home)
    followed.gate = (passes, "on 9 held-out tasks it differs from v0 by +0.100")
    now = train(followed, home, scene, "t1")
    folder = home / "policies" / "sql"
    trial = Deployment.begin(1, by="ltrain", stage=Stage.CANDIDATE)
    (folder / "deployments.jsonl").unlink()
    record_deployment(folder, trial)
    followed.watcher.look(now)
    [look] = followed.looks
    assert look.sentence == f"v1 of policy 'sql' is {stage}: {followed.gate[1]}."
    last = read_deployments(folder)[-1]
    assert (last.stage, last.share, last.by) == (stage, 0.5 * passes, "ltrain run --watch")
    assert last.began >= last.at > trial.at or not passes


def test_gates_that_cannot_be_run_admit_nobody(home: Path, scene: Scene) -> None:
    followed = follow(home)
    now = train(followed, home, scene, "t1")
    (home / "policies" / "sql" / "deployments.jsonl").unlink()
    trial = Deployment.begin(1, by="ltrain", stage=Stage.CANDIDATE)
    record_deployment(home / "policies" / "sql", trial)

    def fail(plan: Any, version: int) -> tuple[bool, str]:
        raise faults.pop()

    followed.watcher.examine = fail
    faults: list[Exception] = [RunInUse("The policy is in use.")]
    with pytest.raises(RunInUse):
        followed.watcher.look(now)
    assert stages(home) == [(1, "candidate")]
    faults = [BadRun("vLLM does not fit.")]
    followed.watcher.look(now)
    assert stages(home)[-1] == (1, "retired")
    assert followed.looks[0].sentence.endswith(
        "is retired: its gates could not be run: vLLM does not fit."
    )


def test_an_online_run_has_no_canaries(home: Path) -> None:
    plan = follow(home).watcher.plan
    with pytest.raises(BadRun, match="share of \\[deploy\\] is for versions that are trained on"):
        command.train_online(plan, as_json=False)
