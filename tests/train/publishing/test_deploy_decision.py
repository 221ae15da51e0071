"""`ltrain deploy decide`: a candidate is promoted, taken back, or goes on, by the store."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.otlp import open_empty_store
from tests.train.publishing.test_retention import home as home  # a fixture
from tests.transforms.trials.test_stored import Calls

from ltrain_collector.errors import StoreUnreachable
from ltrain_train.policy import Policies
from ltrain_train.publishing import deploy_commands, deploy_decision
from ltrain_transforms.deployment_file import (
    Deployment,
    Stage,
    read_deployments,
    record_deployment,
)
from ltrain_transforms.errors import BadDeployment

RECIPE = """
policy = [{ name = "sql" }]
reward = [{ name = "thumbs", evaluation = "thumbs" }]
[deploy]
goal = "thumbs"
max_loss = 0.1
reward_window = 0
"""


@pytest.fixture(autouse=True)
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(home))
    monkeypatch.setenv("LTRAIN_GATEWAY", "http://127.0.0.1:9")
    monkeypatch.setenv("LOGNAME", "ada")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE)
    return path


def decide_candidate(name: str, recipe: Path, store: str | None, *, watch: bool) -> None:
    """Decide with a gate that is open."""
    deploy_decision.decide_candidate(
        name, recipe, store, lambda version: (True, f"v{version} passes"), watch=watch
    )


def begin(home: Path, *, watched: bool = False, stage: Stage = Stage.CANARY) -> None:
    """Start a trial of version 8, or the watch after its promotion."""
    deployment = Deployment.begin(8, 0.5, by="ada", stage=stage)
    if watched:
        deployment = deployment.watch(7, 0.9, by="ada")
        Policies(home).promote("sql", 8)
    record_deployment(
        home / "policies" / "sql", deployment.model_copy(update={"experiment": "trial"})
    )


def trial(
    home: Path,
    folder: Path,
    good: float,
    units: int = 300,
    failed: float = 0.0,
    *,
    watched: bool = False,
    stage: Stage = Stage.CANARY,
) -> str:
    """Begin a trial of version 8 and return the address of a store with its calls.

    Args:
        good: the share of the candidate's units whose feedback is 1; of the current version half.
        failed: the share of the candidate's calls that failed.
    """
    begin(home, watched=watched, stage=stage)
    calls = Calls()
    for unit in range(units):
        place = unit / units
        calls.call("candidate", f"a{unit}", float(place < good), failed=place < failed)
        calls.call("current", f"b{unit}", float(place < 0.5))
    with open_empty_store(folder / "store") as store:
        calls.insert(store)
    return f"chdb://{folder / 'store'}"


@pytest.mark.parametrize(
    ("good", "failed", "current", "sentence"),
    [
        (0.9, 0.0, 8, "v8 of policy 'sql' is watched: thumbs is better by 0.2"),
        (0.1, 0.0, 7, "v8 of policy 'sql' is retired: thumbs is worse"),
        (0.9, 0.5, 7, "v8 of policy 'sql' is retired: failed calls is worse"),
        (0.52, 0.0, 7, "v8 of policy 'sql' goes on: thumbs may differ by only -0."),
    ],
)
def test_the_store_decides(
    home: Path,
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    good: float,
    failed: float,
    current: int,
    sentence: str,
) -> None:
    store = trial(home, tmp_path, good, failed=failed)
    decide_candidate("sql", recipe, store, watch=False)
    printed = capsys.readouterr().out
    assert printed.startswith(sentence)
    assert Policies(home).current("sql") == current
    last = read_deployments(home / "policies" / "sql")[-1]
    assert "goes on" in sentence or last.by == "ltrain deploy decide"
    assert "goes on" in sentence or last.reason in printed


@pytest.mark.parametrize(
    ("failed", "stage", "sentence"),
    [
        (0.0, "canary", "v8 of policy 'sql' is canary: no loss was seen in 300 conversations"),
        (0.5, "retired", "v8 of policy 'sql' is retired: failed calls is worse"),
    ],
)
def test_a_candidate_in_the_shadow_is_judged_by_its_calls(
    home: Path,
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    failed: float,
    stage: str,
    sentence: str,
) -> None:
    recipe.write_text(RECIPE + "share = 0.25\nshadow = 200\n[train]\nlora_rank = 2\n")
    store = trial(home, tmp_path, 0.0, failed=failed, stage=Stage.SHADOW)
    decide_candidate("sql", recipe, store, watch=False)
    assert capsys.readouterr().out.startswith(sentence)
    last = read_deployments(home / "policies" / "sql")[-1]
    assert (last.stage, last.share) == (stage, 0.25 if stage == "canary" else 0.0)
    deploy_commands.print_status("sql", store, recipe, as_json=True)
    described = json.loads(capsys.readouterr().out)["sql"]
    assert described["current"] == 7


def test_a_person_may_approve(
    home: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(RECIPE + 'approve = "manual"\n')
    decide_candidate("sql", recipe, trial(home, tmp_path, 0.9), watch=False)
    assert "may be promoted: thumbs is better" in capsys.readouterr().out
    assert Policies(home).current("sql") == 7
    assert read_deployments(home / "policies" / "sql")[-1].serves


def test_fewer_failed_calls_may_be_the_goal(
    home: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(RECIPE.replace('"thumbs"\nmax', '"failed calls"\nmax'))
    decide_candidate("sql", recipe, trial(home, tmp_path, 0.5, failed=0.5), watch=False)
    assert "is retired: failed calls is worse" in capsys.readouterr().out


def test_a_used_up_budget_retires(
    home: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(RECIPE + "budget = 100\n")
    decide_candidate("sql", recipe, trial(home, tmp_path, 0.5), watch=False)
    assert "is retired: the budget of 100 is used up" in capsys.readouterr().out


def test_feedback_that_may_still_arrive_is_not_compared(
    home: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(RECIPE.replace("reward_window = 0", "reward_window = 4e9"))
    decide_candidate("sql", recipe, trial(home, tmp_path, 0.1), watch=False)
    expected = "goes on: no value of thumbs, units with feedback has arrived."
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("good", "seconds", "current", "sentence"),
    [
        (0.1, 0, 7, "v8 of policy 'sql' is retired: thumbs is worse"),
        (0.1, 7200, 7, "v8 of policy 'sql' is retired: thumbs is worse"),
        (0.5, 0, 8, "v8 of policy 'sql' goes on: no loss was seen since its promotion"),
        (0.5, 7200, 8, "v8 of policy 'sql' is current: no loss was seen in 3600 s"),
    ],
)
def test_a_promoted_version_is_taken_back_if_it_is_worse_than_the_one_before(
    home: Path,
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    good: float,
    seconds: float,
    current: int,
    sentence: str,
) -> None:
    store = trial(home, tmp_path, good, watched=True)
    later = SimpleNamespace(time=lambda: time.time() + seconds, time_ns=time.time_ns)
    monkeypatch.setattr("ltrain_train.publishing.deploy_decision.time", later)
    decide_candidate("sql", recipe, store, watch=False)
    assert capsys.readouterr().out.startswith(sentence)
    assert Policies(home).current("sql") == current


def test_without_watch_after_a_promotion_is_final(home: Path, recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE + "watch_after = 0\n")
    decide_candidate("sql", recipe, trial(home, tmp_path, 0.9), watch=False)
    assert read_deployments(home / "policies" / "sql")[-1].stage == "current"


def test_a_decision_is_sent_to_a_command(
    home: Path, recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "event.json"
    recipe.write_text(RECIPE + f"notify = 'cp /dev/stdin {out}'\n")
    decide_candidate("sql", recipe, trial(home, tmp_path, 0.1), watch=False)
    event = json.loads(out.read_text())
    assert event.pop("text").startswith("v8 of policy 'sql' is retired: thumbs is worse")
    trial_ = {"policy": "sql", "version": 8, "stage": "retired", "experiment": "trial"}
    assert (event, caplog.messages) == (trial_, [])


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("http://127.0.0.1:9/key", "ConnectError"),
        ("no-such-command", "No such file or directory: 'no-such-command'"),
        ("false", "returned non-zero exit status 1"),
        ("'", "No closing quotation"),
    ],
)
def test_a_notification_that_fails_changes_nothing(
    caplog: pytest.LogCaptureFixture, target: str, fault: str
) -> None:
    deploy_decision.notify(target, {"text": "a decision"})
    [message] = caplog.messages
    assert message.startswith("ltrain: notify of [deploy] failed: ") and fault in message
    assert "key" not in message


def test_without_a_store_nothing_is_decided(home: Path, recipe: Path, tmp_path: Path) -> None:
    trial(home, tmp_path, 0.9)
    with pytest.raises(StoreUnreachable):
        decide_candidate("sql", recipe, "http://127.0.0.1:9", watch=False)
    assert read_deployments(home / "policies" / "sql")[-1].serves


def test_without_a_candidate_there_is_nothing_to_decide(home: Path, recipe: Path) -> None:
    with pytest.raises(BadDeployment, match="has no candidate"):
        decide_candidate("sql", recipe, None, watch=False)


def test_a_watch_looks_until_the_trial_has_ended(
    home: Path,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = trial(home, tmp_path, 0.5)

    def stop(seconds: float) -> None:
        assert seconds == 60
        deploy_commands.stop_candidate("sql", "by hand")

    clock = SimpleNamespace(sleep=stop, time_ns=time.time_ns)
    monkeypatch.setattr("ltrain_train.publishing.deploy_decision.time", clock)
    decide_candidate("sql", recipe, store, watch=True)
    first, _, last = capsys.readouterr().out.splitlines()
    assert first.startswith("v8 of policy 'sql' goes on: thumbs may differ")
    assert last == "The trial of v8 has ended: `ltrain deploy status sql`."
