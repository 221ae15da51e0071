"""`ltrain run --once --dry-run`: what there is to train on, or why there is nothing, as subprocess.

Stores are real, and no test loads a model.
"""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import Attempt, Scene
from tests.transforms.datasets.test_lineage import write_version
from tests.transforms.show.test_cli import ltrain

from ltrain_collector.store import Store
from ltrain_instrument.identity import Identity, rollout_id
from ltrain_transforms.datasets import list_datasets

RECIPE = """
source = { SOURCE }
policy = [{ name = "sql" }]

[[reward]]
name = "thumbs"
evaluation = "thumbs"
from = "any"

[[reward]]
name = "tool-failed"
on = "tool"
when = "status = 'error'"
value = "-0.2"
credit_to = "requester"
"""

Done = subprocess.CompletedProcess[str]


class Turn(Attempt):
    """One trace of production traffic: its spans name a session or nothing."""

    session = ""

    def emit(self, name: str, scope: str, attributes: Any, **more: Any) -> str:
        own = {"session.id": self.session} if self.session else {}
        return super().emit(name, scope, own | attributes, **more | {"named": False})


def turn(scene: Scene, number: int, session: str = "") -> Turn:
    name = rollout_id(run="web", task=str(number), mode="prod", wave=0, sample=0)
    made = Turn(Identity(rollout=name, attempt=1))
    made.session = session
    scene.attempts.append(made)
    return made


def talk(scene: Scene, thumbs: Iterable[float | None], **llm: Any) -> None:
    """Add a session of one call for each thumb; None: without feedback."""
    for number, thumb in enumerate(thumbs):
        made = turn(scene, number, f"s{number}")
        made.llm(response=(4, number), **llm)
        if thumb is not None:
            made.evaluate(thumb, "thumbs", by="web")


def store_traces(folder: Path, scene: Scene, source: str = 'execution = "session"') -> None:
    (folder / "ltrain.toml").write_text(RECIPE.replace("SOURCE", source))
    path = folder / "store"
    with Store.open(f"chdb://{path}") if path.exists() else open_empty_store(path) as store:
        insert_otlp(store, scene.request())


def dry_run(folder: Path, *options: str) -> Done:
    return ltrain(folder, "run", "--once", "--dry-run", *options)


def read(done: Done) -> Any:
    report = json.loads(done.stdout)
    for each in (report["executions"], report["calls"]):
        assert each["all"] == each["trained"] + sum(each["left_out"].values())
    return report


def test_production_traffic_is_trained_by_default(tmp_path: Path) -> None:
    scene = Scene()
    talk(scene, [1.0, 0.0, 1.0, None, 0.0])
    scene.attempts[0].llm("rewrite", (1, 2, 3), (9,), gateway={"gen_ai.request.temperature": 0.0})
    store_traces(tmp_path, scene)
    done = dry_run(tmp_path, "--mode", "prod", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = read(done)
    folder = f".ltrain/datasets/{tmp_path.name}/prod-sql@0"
    assert report | {"dataset": ""} == {
        "policy": "sql",
        "from_version": 0,
        "mode": "prod",
        "estimator": "reinforce_pp",
        "dataset": "",
        "folder": folder,
        "executions": {"all": 5, "trained": 4, "left_out": {"unrewarded": 1}},
        "groups": 5,
        "groups_of_one": 5,
        "rewards": [
            {"name": "thumbs", "executions": 4, "mean": 0.5},
            {"name": "tool-failed", "executions": 0, "mean": None},
        ],
        "without_reward": 1,
        "calls": {"all": 5, "trained": 4, "left_out": {"greedy": 1}},
        "llm_calls": 6,
        "rows": 4,
        "rendered_rows": 0,
        "tokens": 8,
        "row_tokens": 20,
        "computed_tokens": 4,
        "cost": None,
    }
    # nothing is registered, published or recorded as trained
    home = tmp_path / ".ltrain"
    assert not (home / "policies").exists() and not (home / "runs").exists()
    assert [dataset for _, dataset in list_datasets(home)] == [report["dataset"]]

    text = dry_run(tmp_path, "--mode", "prod")
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout.splitlines() == [
        "executions          5 = 4 to train on + 1 left out (unrewarded 1)",
        "groups              5, 5 of them with one execution",
        "reward thumbs       in 4 executions, mean 0.500",
        "reward tool-failed  in 0 executions",
        "no reward           1 of 5 executions",
        "calls               5 = 4 to train on + 1 left out (greedy 1)",
        "rows                4 with 8 tokens to train on",
        "computed            4 of 20 tokens go through the model",
        "estimator           reinforce_pp, for mode prod",
        "starts from         sql@0",
        f"dataset             {report['dataset']} in {folder}",
        "Nothing was trained. To train, run it without --dry-run and with --model DIR, as policy "
        "'sql' has no version yet.",
    ]


TINKER = """
[train]
backend = "tinker"
steps_per_wave = 2
[train.tinker]
base_model = "m"
prices = { prefill = 1000, sample = 4000, train = 2000 }
"""


def test_a_dry_run_estimates_the_cost_by_the_prices_of_the_recipe(tmp_path: Path) -> None:
    scene = Scene()
    talk(scene, [1.0, 0.0, 1.0, 0.0])
    store_traces(tmp_path, scene)
    with (tmp_path / "ltrain.toml").open("a") as recipe:
        recipe.write(TINKER)
    report = read(dry_run(tmp_path, "--mode", "prod", "--json"))
    assert (report["tokens"], report["row_tokens"]) == (8, 20)
    update, sampling = 20 * 1.5 * 1e-3 + 20 * 2e-3, 12 * 1e-3 + 8 * 4e-3
    assert report["cost"] == pytest.approx({"update": update, "sampling": sampling})
    text = dry_run(tmp_path, "--mode", "prod").stdout
    assert (
        "cost                about $0.0700 for the update and $0.0440 to sample the rows, by the "
        "recipe's prices\n" in text
    )


def test_the_recipe_may_name_the_mode(tmp_path: Path) -> None:
    scene = Scene()
    talk(scene, [1.0, 0.0])
    store_traces(tmp_path, scene, 'execution = "session", mode = "prod"')
    assert read(dry_run(tmp_path, "--json"))["estimator"] == "reinforce_pp"
    assert ltrain(tmp_path, "build").returncode == 0
    rules = json.loads(ltrain(tmp_path, "rules", "--json").stdout)
    assert rules["executions"] == 2
    assert (tmp_path / ".ltrain/datasets/ltrain/prod").is_dir()


@pytest.mark.nightly
def test_traffic_without_sessions_is_one_execution_a_trace(tmp_path: Path) -> None:
    scene = Scene()
    for number, thumb in enumerate((1.0, 0.0)):
        made = turn(scene, number)
        made.llm()
        made.evaluate(thumb, "thumbs", by="web", trace=made.trace)
    store_traces(tmp_path, scene)
    report = read(dry_run(tmp_path, "--mode", "prod", "--json"))
    assert report["executions"] == {"all": 2, "trained": 2, "left_out": {}}


def test_an_estimator_that_cannot_use_groups_of_one_is_named_with_those_that_can(
    tmp_path: Path,
) -> None:
    scene = Scene()
    talk(scene, [1.0, 0.0])
    store_traces(tmp_path, scene)
    done = dry_run(tmp_path)
    assert done.returncode == 1
    assert "executions          2 = 0 to train on + 2 left out (alone 2)" in done.stdout
    assert (
        "Nothing to train on. 2 of 2 executions are alone in their group, and estimator 'grpo' "
        "compares executions within a group. Estimators that fit groups of one: reinforce_pp, "
        "running, rae (with peers = 'agent'). Write `estimator = \"reinforce_pp\"` under "
        "[credit.outcome] in the recipe." in done.stderr
    )
    with (tmp_path / "ltrain.toml").open("a") as recipe:
        recipe.write('[credit.outcome]\nestimator = "grpo"\n')
    named = dry_run(tmp_path, "--mode", "prod")
    assert named.returncode == 1 and "estimator 'grpo' compares" in named.stderr


@pytest.mark.nightly
def test_one_rollout_a_task_is_alone_too(tmp_path: Path) -> None:
    scene = Scene()
    for task, value in (("t1", 1.0), ("t2", 0.0)):
        rollout = scene.attempt(task)
        rollout.dispatch()
        rollout.llm()
        rollout.evaluate(value, "thumbs")
        rollout.close()
    store_traces(tmp_path, scene, 'run = "demo"')
    done = dry_run(tmp_path, "--json")
    assert done.returncode == 1 and "2 of 2 executions are alone in" in done.stderr
    assert read(done)["executions"]["left_out"] == {"alone": 2}
    with (tmp_path / "ltrain.toml").open("a") as recipe:
        recipe.write('[credit.outcome]\nestimator = "reinforce_pp"\n')
    assert read(dry_run(tmp_path, "--json"))["executions"]["trained"] == 2


@pytest.mark.parametrize(
    ("thumbs", "llm", "reason"),
    [
        ([None, None], {}, "2 of 2 executions lack a reward. The recipe names 'thumbs', 'tool-f"),
        pytest.param(
            *([1.0, 1.0], {}, "2 of 2 executions have the same reward as those that"),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            *([1.0], {}, "1 of 1 executions have no other one to be compared with"),
            marks=pytest.mark.nightly,
        ),
        ([1.0, 0.0], {"ids": False}, "In 2 of 2 executions the calls have no token ids that"),
        ([1.0, None], {}, "lack a reward. The recipe names"),
    ],
)
def test_why_there_is_nothing_to_train_on(
    tmp_path: Path, thumbs: list[float | None], llm: Any, reason: str
) -> None:
    scene = Scene()
    talk(scene, thumbs, **llm)
    store_traces(tmp_path, scene)
    done = dry_run(tmp_path, "--mode", "prod", "--json")
    assert done.returncode == 1
    assert done.stderr.startswith("ltrain: Nothing to train on. ") and reason in done.stderr
    assert "`ltrain show .ltrain/datasets/" in done.stderr
    assert read(done)["rows"] == 0


@pytest.mark.nightly
def test_requests_without_an_llm_call_are_no_missing_feedback(tmp_path: Path) -> None:
    scene = Scene()
    talk(scene, [1.0, 0.0, None])
    turn(scene, 7, "s7").tool()
    store_traces(tmp_path, scene)
    report = read(dry_run(tmp_path, "--mode", "prod", "--json"))
    assert report["executions"] == {
        "all": 4,
        "trained": 2,
        "left_out": {"no_llm_call": 1, "unrewarded": 1},
    }
    assert report["without_reward"] == 1


def test_traces_without_an_llm_call(tmp_path: Path) -> None:
    scene = Scene()
    for number in range(2):
        made = turn(scene, number, f"s{number}")
        made.tool()
        made.evaluate(1.0, "thumbs", by="web")
    store_traces(tmp_path, scene)
    done = dry_run(tmp_path, "--mode", "prod")
    assert done.returncode == 1
    assert "None of the 2 executions has an LLM call. `ltrain doctor` says" in done.stderr


def test_no_traces_yet(tmp_path: Path) -> None:
    (tmp_path / "ltrain.toml").write_text(RECIPE.replace("SOURCE", 'execution = "session"'))
    done = dry_run(tmp_path, "--mode", "prod")
    assert done.returncode == 1 and "There is no store in" in done.stderr
    assert "`ltrain up`" in done.stderr
    store_traces(tmp_path, Scene())
    done = dry_run(tmp_path, "--mode", "prod")
    assert done.returncode == 1
    assert "The store has no traces yet. Start `ltrain up`" in done.stderr
    scene = Scene()
    talk(scene, [1.0])
    store_traces(tmp_path, scene, "")
    done = dry_run(tmp_path, "--mode", "prod")
    assert done.returncode == 1
    assert 'Write `execution = "session"` under [source]' in done.stderr


def test_what_the_policy_was_trained_on_is_left_out_and_its_dataset_stays(tmp_path: Path) -> None:
    scene = Scene()
    talk(scene, [1.0, 0.0])
    store_traces(tmp_path, scene)
    first = read(dry_run(tmp_path, "--mode", "prod", "--json"))
    home = tmp_path / ".ltrain"
    policy = home / "policies" / "sql"
    write_version(policy, 0, None, [])
    talk(scene, [1.0, 0.0, 1.0])  # feedback and traffic that came later: a draft gives way
    store_traces(tmp_path, scene)
    second = read(dry_run(tmp_path, "--mode", "prod", "--json"))
    assert second["dataset"] != first["dataset"] and second["folder"] == first["folder"]

    write_version(policy, 1, 0, ["s0", "s1", "s2"])
    manifest = policy / "v1" / "policy.json"
    fields = json.loads(manifest.read_text()) | {"dataset": second["dataset"]}
    manifest.write_text(json.dumps(fields))
    (policy / "current").write_text("1\n")
    done = dry_run(tmp_path, "--mode", "prod")
    assert done.returncode == 1
    assert "3 of 3 rollouts are left out: policy 'sql' was trained on them before" in done.stderr
    assert "add --again" in done.stderr
    again = read(dry_run(tmp_path, "--mode", "prod", "--json", "--again"))
    assert (again["executions"]["trained"], again["from_version"]) == (3, 1)

    (policy / "current").write_text("0\n")  # rolled back: v1 was trained on the dataset for v0
    talk(scene, [1.0, 0.0, 1.0, 0.0])
    store_traces(tmp_path, scene)
    refused = dry_run(tmp_path, "--mode", "prod")
    assert refused.returncode == 1
    assert f"holds dataset {second['dataset']} (mode prod, 3 executions)" in refused.stderr
    assert (tmp_path / second["folder"], second["dataset"]) in list_datasets(home)
    replaced = read(dry_run(tmp_path, "--mode", "prod", "--json", "--replace"))
    assert replaced["executions"]["trained"] == 4


def test_a_built_dataset_is_reported_too(tmp_path: Path) -> None:
    scene = Scene()
    talk(scene, [1.0, 0.0])
    store_traces(tmp_path, scene, 'execution = "session", mode = "prod"')
    assert ltrain(tmp_path, "build", "--out", "made").returncode == 0
    write_version(tmp_path / ".ltrain" / "policies" / "sql", 0, None, ["s0"])
    report = read(dry_run(tmp_path, "--from-dataset", "made", "--json"))
    assert report["folder"] == "made"
    assert report["executions"] == {"all": 2, "trained": 1, "left_out": {"consumed": 1}}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--dry-run"], "--dry-run is for training once. Add --once."),
        (["--mode", "prod"], "--mode is for training once. Add --once."),
        (["--once", "--mode", "prod", "--from-dataset", "x"], "--mode selects stored traces"),
        (["--once", "--mode", "production"], "'production' is not one of"),
    ],
)
def test_options_of_training_once(tmp_path: Path, options: list[str], sentence: str) -> None:
    (tmp_path / "ltrain.toml").write_text(RECIPE.replace("SOURCE", ""))
    done = ltrain(tmp_path, "run", *options)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
