"""The critic and the policy train as their formulas in plain torch do, on one rank and on two."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from safetensors.numpy import load_file
from tests.train.learner.conftest import ONE_THREAD, TRAIN, write_rows
from tests.train.learner.test_objectives import distance

from ltrain_train.errors import BadSamples
from ltrain_train.learner import LearnerClient, Objective
from ltrain_train.learner.objective import decode_objective
from ltrain_train.policy import Reference
from ltrain_transforms.recipe import Critic, Train

Rows = list[dict[str, Any]]
Make = Callable[..., Rows]

STEPS = 3
CRITIC: dict[str, Any] = {"learning_rate": 3e-3, "gamma": 0.95, "lam": 0.9, "value_clip": 0.05}
PLAIN: dict[str, Any] = {"lr": 1e-3, "critic_lr": 3e-3, "steps": STEPS} | CRITIC
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vanilla": ({}, {}),
    "cispo": ({"loss": "cispo"}, {"loss": "cispo"}),
    "kl in the reward": (
        {"kl_coefficient": 0.3, "kl_in": "reward", "kl_estimator": "k1"},
        {"kl": 0.3},
    ),
}
"""For each objective what a recipe sets, and the case of `plain.py`."""
NUMBERS = ("loss", "grad_norm", "value_loss", "critic_grad_norm")


def train_of(**more: Any) -> Train:
    return Train(**TRAIN.model_dump(exclude={"verl", "critic"}) | more, critic=Critic(**CRITIC))


def objective_of(**settings: Any) -> Objective:
    return decode_objective(Objective.from_train(train_of()).encode() | settings)


@pytest.fixture(scope="module")
def rows(make_rows: Make) -> Rows:
    """Return rows of which two make an execution; the calls of long ones interleave."""
    rows = make_rows(16)
    for number, row in enumerate(rows):
        is_long = len(row["response_ids"]) > 3
        row["execution_id"] = f"e{number // 2}"
        row["call_positions"] = [number % 2, number % 2 + 2][: 1 + is_long]
        if is_long:
            row |= {"call_offsets": [0, 2], "call_versions": [0, 0]}
            row["response_mask"][2] = 1
        mask = row["response_mask"]
        row["token_rewards"] = [m * (number % 3 - 0.7 * k) for k, m in enumerate(mask)]
        row["advantages"] = [0.0] * len(mask)
    return rows


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory, rows: Rows) -> Path:
    return write_rows(rows, tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def started(
    tiny: Path, other: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LearnerClient]:
    """Start a learner of all weights with a critic, and with another model as its reference."""
    folder = tmp_path_factory.mktemp("run")
    with LearnerClient(
        train_of(), tiny, directory=folder, policy="tiny", reference=Reference(other)
    ) as learner:
        learner.save(folder / "untrained")
        yield learner


@pytest.fixture(scope="module")
def results(
    started: LearnerClient, tiny: Path, other: Path, samples: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Train each case in the learner, then all of them in plain torch."""
    folder = tmp_path_factory.mktemp("cases")
    learned, cases = {}, []
    for name, (settings, case) in CASES.items():
        started.load(started.log.parent / "untrained")
        objective = objective_of(**settings)
        reports = [started.step(samples, objective, version=0) for _ in range(STEPS)]
        started.save(folder / name)
        started.export(folder / f"{name} exported")
        learned[name] = {key: [r.metrics[key] for r in reports] for key in NUMBERS}
        paths = {"weights": str(folder / f"{name}.safetensors"), "reference": str(other)}
        cases.append(PLAIN | paths | {"critic": str(folder / name / "critic")} | case)
    plain = train_plainly(tiny, samples, cases)
    return {
        name: {
            "learned": learned[name],
            "plain": each,
            "weights": load_file(folder / f"{name}.safetensors"),
            "exported": load_file(folder / f"{name} exported" / "model.safetensors"),
        }
        for name, each in zip(CASES, plain, strict=True)
    }


def train_plainly(model: Path, samples: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("plain.py")
    command: list[Any] = [sys.executable, script, model, samples, json.dumps(cases)]
    done = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def learner(started: LearnerClient) -> LearnerClient:
    started.load(started.log.parent / "untrained")
    return started


@pytest.mark.parametrize("name", CASES)
def test_policy_and_critic_train_as_in_plain_torch(
    results: dict[str, dict[str, Any]], name: str
) -> None:
    result = results[name]
    for key in NUMBERS:
        assert result["learned"][key] == pytest.approx(result["plain"][key], rel=1e-5, abs=1e-6)
    assert distance(result["exported"], result["weights"]) < 1e-5
    assert result["plain"]["distance"] < 1e-5
    assert "score.weight" not in result["exported"]


@pytest.mark.nightly
@pytest.mark.parametrize("sequence_ranks", [1, 2])
def test_two_ranks_train_as_one(
    results: dict[str, dict[str, Any]],
    tiny: Path,
    samples: Path,
    tmp_path: Path,
    sequence_ranks: int,
) -> None:
    train = train_of(ranks=2, sequence_ranks=sequence_ranks)
    with LearnerClient(train, tiny, directory=tmp_path, policy="tiny", ranks=2) as learner:
        reports = [learner.step(samples, objective_of(), version=0) for _ in range(STEPS)]
    for key, expected in results["vanilla"]["learned"].items():
        assert [r.metrics[key] for r in reports] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_merged_rows_train_as_unmerged_ones(learner: LearnerClient, tmp_path: Path) -> None:
    """A row of two calls, between which another row has a call."""
    one: dict[str, Any] = {
        "prompt_ids": [1, 2], "response_ids": [3, 4, 9, 5, 6], "response_mask": [1, 1, 0, 1, 1],
        "token_rewards": [0.0, 1.0, 0.0, 0.0, 2.0], "call_positions": [0, 2],
        "call_offsets": [0, 3], "rollout_logprobs": [-6.1, -6.2, 0.0, -6.3, -6.4],
        "loss_weight": [0.2, 0.2, 0.0, 0.2, 0.2], "call_versions": [0, 0],
    }  # fmt: skip
    between = [slice(0, 2), slice(3, 5)]
    halves = [
        {name: value[part] for name, value in one.items()}
        | {"call_offsets": [0], "call_versions": [0], "call_positions": [position]}
        for part, position in zip(between, (0, 2), strict=True)
    ]
    halves[0]["prompt_ids"], halves[1]["prompt_ids"] = [1, 2], [1, 2, 3, 4, 9]
    other = halves[0] | {"prompt_ids": [7], "call_positions": [1], "token_rewards": [0.5, -1.0]}
    reports = []
    for rows in ([one, other], [*halves, other]):
        learner.load(learner.log.parent / "untrained")
        folder = tmp_path / str(len(rows))
        folder.mkdir()
        complete = [
            {
                "sample_id": f"s{number}", "execution_id": "e", "rollout_id": "r", "policy": "p",
                "group_id": "g", "tokens": "sampled", "temperature": 1.0,
                "advantages": [0.0] * len(row["response_ids"]),
            }
            | row
            for number, row in enumerate(rows)
        ]  # fmt: skip
        path = write_rows(complete, folder)
        reports.append([learner.step(path, objective_of(), version=0) for _ in range(2)])
    merged, unmerged = reports
    for a, b in zip(merged, unmerged, strict=True):
        numbers = {key: a.metrics[key] for key in (*NUMBERS, "advantage_std", "return_mean")}
        assert {key: b.metrics[key] for key in numbers} == pytest.approx(numbers, rel=1e-5)


def test_a_run_that_resumes_equals_the_one_that_went_on(
    learner: LearnerClient, samples: Path, tmp_path: Path
) -> None:
    learner.step(samples, objective_of(), version=0)
    learner.save(tmp_path / "saved")
    on = learner.step(samples, objective_of(), version=0)
    learner.load(tmp_path / "saved")
    resumed = learner.step(samples, objective_of(), version=0)
    assert resumed.metrics == on.metrics
    assert resumed.metrics["explained_variance"] != 0


def test_in_the_warm_up_only_the_critic_trains(learner: LearnerClient, samples: Path) -> None:
    before = learner.log_probs(samples)
    report = learner.step(samples, objective_of(trains_policy=False), version=0)
    assert learner.log_probs(samples) == before
    assert (report.steps, report.total_steps, report.undone) == (1, 1, 0)
    assert "loss" not in report.metrics
    assert report.metrics["value_mean"] == 0.0
    report = learner.step(samples, objective_of(), version=0)
    assert report.metrics["value_mean"] != 0.0
    assert report.metrics["loss"] != 0.0


def test_an_update_that_is_not_finite_is_undone_in_the_critic_too(
    learner: LearnerClient, rows: Rows, samples: Path, tmp_path: Path
) -> None:
    infinite = [row | {"token_rewards": [1e38] * len(row["response_ids"])} for row in rows]
    report = learner.step(write_rows(infinite, tmp_path), objective_of(), version=0)
    assert (report.steps, report.undone) == (0, 1)
    [warning] = [each for each in report.warnings if "undone" in each]
    assert "1 of 1 optimizer steps were undone" in warning
    after = learner.step(samples, objective_of(), version=0)
    assert after.metrics["value_mean"] == 0.0


def test_a_checkpoint_without_a_critic_starts_it_anew(
    learner: LearnerClient, samples: Path, tmp_path: Path
) -> None:
    learner.step(samples, objective_of(), version=0)
    learner.save(tmp_path / "saved")
    (tmp_path / "saved" / "critic").rename(tmp_path / "elsewhere")
    record = json.loads((tmp_path / "saved" / "learner.json").read_text())
    files = {k: v for k, v in record["files"].items() if not k.startswith("critic/")}
    record |= {"files": files, "sha256": None}
    (tmp_path / "saved" / "learner.json").write_text(json.dumps(record))
    learner.load(tmp_path / "saved")
    report = learner.step(samples, objective_of(), version=0)
    assert report.metrics["value_mean"] == 0.0
    assert report.warnings[0].startswith(f"The checkpoint {tmp_path / 'saved'} has no critic")
    assert learner.step(samples, objective_of(), version=0).warnings == report.warnings[1:]


def test_rows_without_the_order_of_their_calls_are_refused(
    learner: LearnerClient, samples: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old.parquet"
    pl.read_parquet(samples).drop("call_positions").write_parquet(old)
    with pytest.raises(BadSamples, match="has no column call_positions"):
        learner.step(old, objective_of(), version=0)
    unordered = pl.read_parquet(samples).with_columns(call_positions=pl.lit([], pl.List(pl.Int32)))
    unordered.write_parquet(old)
    with pytest.raises(BadSamples, match="call_positions must be as long as call_offsets"):
        learner.step(old, objective_of(), version=0)
    assert learner.step(old, objective_of(kind="sft"), version=0).steps == 1, "no critic reads them"


@pytest.mark.nightly
def test_an_adapter_has_a_critic_with_an_adapter(tiny: Path, samples: Path, tmp_path: Path) -> None:
    """In rows as they are, without a prefix tree; the head is trained and saved too.

    In the first step, only the head has a gradient: the critic's values are 0 whatever the adapter.
    """
    model = tmp_path / "unshared"
    shutil.copytree(tiny, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps(config | {"layer_types": ["chunked_attention"] * config["num_hidden_layers"]})
    )
    train = train_of(lora_rank=4)
    with LearnerClient(train, model, directory=tmp_path, policy="tiny") as learner:
        objective = objective_of()
        first = learner.step(samples, objective, version=0)
        for _ in range(2):
            learner.step(samples, objective, version=0)
        learner.save(tmp_path / "saved")
        on = learner.step(samples, objective, version=0)
        learner.load(tmp_path / "saved")
        assert learner.step(samples, objective, version=0).metrics == on.metrics
    [plain] = train_plainly(
        tiny, samples, [PLAIN | {"steps": 1, "head_only": True, "reference": str(tiny)}]
    )
    for name in ("value_loss", "critic_grad_norm"):
        assert first.metrics[name] == pytest.approx(plain[name][0], rel=1e-5)
    assert on.metrics["value_loss"] < first.metrics["value_loss"]
    saved = sum(file.stat().st_size for file in (tmp_path / "saved" / "critic").iterdir())
    assert saved < (tiny / "model.safetensors").stat().st_size
