"""Updates at a server of the Tinker API: their gradient, their checkpoints, and lost servers."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.tinker_server import TinkerServer
from tests.train.learner.conftest import write_rows
from tests.train.learner.tinker.conftest import Rows, Start, objective, plain, tensors, train

from ltrain_train.errors import BadCheckpoint, BadRun, BadSamples, LearnerFailed, PolicyDrift
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.tinker_backend.aggregation import Aggregation
from ltrain_train.learner.tinker_backend.journal import Journal
from ltrain_train.learner.tinker_backend.trainer import TinkerTrainer
from ltrain_train.policy import check_adapter, read_adapter_config, read_tinker_weights

STEP: dict[str, Any] = {"version": 0, "dataset": "d", "versions": {}}


def table(server: TinkerServer) -> Any:
    """Return the numbers of the only adapter of a server."""
    [adapter] = server.adapters.values()
    return adapter.table


def test_an_update_raises_good_tokens_and_reports_what_it_measured(
    server: TinkerServer, start: Start, samples: Path
) -> None:
    trainer = start()
    before = trainer.log_probs(samples)
    report = trainer.step(samples, objective(server, learning_rate=0.01), **STEP)
    after = trainer.log_probs(samples)
    rows = pl.read_parquet(samples)
    gains = [
        (np.array(new) - np.array(old)) @ (np.array(advantages) * np.array(weights))
        for old, new, advantages, weights in zip(
            before, after, rows["advantages"], rows["loss_weight"], strict=True
        )
    ]
    assert sum(gains) > 0
    assert (report.rows, report.steps, report.total_steps, report.undone) == (8, 1, 1, 0)
    assert report.trained_tokens == rows["response_mask"].list.sum().sum()
    named = {"loss", "kl", "clip_fraction", "grad_norm", "drift_k3", "drift_ess", "learning_rate"}
    assert named <= report.metrics.keys()


def test_the_update_is_the_same_for_a_server_of_sums_and_one_of_means(
    start: Start, samples: Path
) -> None:
    tables = []
    for sums in (True, False):
        with TinkerServer(sums=sums) as server:
            trainer = start(server)
            expected = Aggregation() if sums else Aggregation(tokens=True, rows=True)
            assert trainer.aggregation == expected
            trainer.step(samples, objective(server, steps_per_wave=2), **STEP)
            tables.append(table(server))
            trainer.close()
    assert np.abs(tables[0]).max() > 0.1
    np.testing.assert_allclose(tables[1], tables[0], atol=1e-4)


LINEAR = """
import json, sys
from pathlib import Path
import numpy as np
from ltrain_train.learner.objective import OBJECTIVES
from ltrain_train.learner.row_values import with_values
from ltrain_train.learner.samples import read_rows
from ltrain_train.learner.tinker_backend import losses
rows = read_rows(Path(sys.argv[1]), vocab_size=517)
current = np.array(json.loads(sys.argv[2]), np.float32)
for text in sys.argv[3:]:
    objective = OBJECTIVES.validate_json(text)
    loss = losses._linear_loss(rows, current, objective)
    print(json.dumps([loss.advantages.tolist(), loss.metrics]))
"""


@pytest.mark.parametrize("name", ["vanilla", "cispo"])
def test_a_loss_of_the_api_has_the_gradient_and_the_metrics_of_verls(
    name: str, server: TinkerServer, make_rows: Callable[..., Rows], tmp_path: Path
) -> None:
    from ltrain_train.learner.samples import read_rows
    from ltrain_train.learner.tinker_backend import losses

    rows = plain(make_rows(24))
    samples = write_rows(rows, tmp_path)
    draw = np.random.default_rng(0)
    flat = np.array([x for row in rows for x in row["rollout_logprobs"]])
    current = (flat + draw.normal(0, 0.8, len(flat))).astype(np.float32)  # some ratios above 3
    goal = objective(server, loss=name)
    frame = read_rows(samples, vocab_size=517)
    native = losses.make_loss(frame, current, goal)
    assert native.name in ("ppo", "cispo")
    ratio = np.exp(current - native.log_probs)
    clipped = ratio.clip(0.8, 1.2)
    if native.name == "ppo":
        free = ratio * native.advantages <= clipped * native.advantages
        slopes = ratio * native.advantages * free
    else:
        slopes = clipped * native.advantages
    [advantages, metrics] = linear(samples, current, goal)
    np.testing.assert_allclose(advantages, slopes, atol=1e-6)
    assert metrics.pop("clip_fraction_lower") == pytest.approx(
        native.metrics["clip_fraction_lower"] if name == "vanilla" else 0.0, abs=1e-6
    )
    for metric, value in metrics.items():
        assert native.metrics[metric] == pytest.approx(value, abs=1e-5), metric


def linear(samples: Path, current: Any, goal: Objective) -> Any:
    """Return the advantages and metrics of verl's loss, from a process with verl."""
    arguments = [str(samples), json.dumps(current.tolist()), json.dumps(goal.encode())]
    done = subprocess.run(
        [sys.executable, "-c", LINEAR, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_sft_needs_no_log_probabilities_of_a_server(
    server: TinkerServer, start: Start, samples: Path
) -> None:
    trainer = start()
    goal = replace(objective(server, learning_rate=0.05), kind="sft")
    losses = [trainer.step(samples, goal, **STEP).metrics["loss"] for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]


def test_weights_go_with_every_row(server: TinkerServer, start: Start, samples: Path) -> None:
    start().step(samples, objective(server), **STEP)
    [sent] = [b for n, b in server.requests if n == "forward_backward" and b["loss_fn"] == "ppo"]
    rows = pl.read_parquet(samples)
    trained = sum(float(row["weights"].sum()) for row in sent["data"])
    assert trained == rows["response_mask"].list.sum().sum()
    assert sent["loss_fn_config"] == pytest.approx(
        {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    )


def test_drift_ends_the_update_before_a_gradient(
    server: TinkerServer, start: Start, samples: Path
) -> None:
    trainer = start()
    made = len(server.names("forward_backward", "optim_step"))
    with pytest.raises(PolicyDrift, match=r"train\.drift_limit"):
        trainer.step(samples, objective(server, drift_limit=1e-6, drift_warning=0), **STEP)
    sent = [b for n, b in server.requests if n == "forward_backward"][made - 3 :]
    assert all(each["forward_only"] for each in sent)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"temperature": 0.7}, "its temperature is 0.7, and the Tinker API trains at 1 only"),
        ({"call_constraints": ["{}"]}, 'Set train.constrained = "relaxed"'),
        ({"tokens": "rendered"}, "its tokens are rendered"),
    ],
)
def test_rows_that_the_api_cannot_score_are_refused(
    fields: dict[str, Any],
    sentence: str,
    server: TinkerServer,
    start: Start,
    make_rows: Callable[..., Rows],
    tmp_path: Path,
) -> None:
    rows = plain(make_rows(4))
    rows[2] |= fields
    with pytest.raises(BadSamples, match=sentence):
        start().step(write_rows(rows, tmp_path), objective(server), **STEP)


def test_an_update_with_a_number_that_is_not_finite_is_undone(
    server: TinkerServer, start: Start, samples: Path, tmp_path: Path
) -> None:
    trainer = start()
    trainer.step(samples, objective(server), **STEP)
    trainer.save(tmp_path / "one")
    kept = table(server).copy()
    report = trainer.step(samples, objective(server, learning_rate=1e300), **STEP)
    assert (report.steps, report.undone, report.total_steps) == (0, 1, 1)
    assert "The update was undone" in report.warnings[0]
    np.testing.assert_array_equal(table(server), kept)


def test_betas_that_are_1_at_skyrl_are_refused(start: Start, tiny: Path, tmp_path: Path) -> None:
    base = tmp_path / "bf16"
    shutil.copytree(tiny, base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    start(base=base)  # the service of Thinking Machines
    with TinkerServer(clips=False) as server:
        start(server)  # in fp32
        with pytest.raises(BadRun, match=r"of `betas`, 0\.999, is 1: no step would be finite"):
            start(server, base=base)
        assert server.names("create_model") == ["create_model"] * 2
        options = train(server, verl={"optimizer": {"betas": [0.9, 0.99]}}).verl
        start(server, base=base, verl=options).close()


def test_a_gradient_that_the_server_does_not_limit_is_a_warning(
    start: Start, samples: Path
) -> None:
    for clips in (True, False):
        with TinkerServer(clips=clips) as server:
            trainer = start(server)
            report = trainer.step(samples, objective(server, gradient_clip=1e-6), **STEP)
            assert any("does not limit it" in each for each in report.warnings) != clips
            trainer.close()


def test_a_checkpoint_continues_with_its_optimizer(
    server: TinkerServer, start: Start, samples: Path, tmp_path: Path
) -> None:
    first = start()
    first.step(samples, objective(server), **STEP)
    first.save(tmp_path / "one")
    first.step(samples, objective(server), **STEP)
    expected = table(server).copy()
    first.close()
    second = start(checkpoint=tmp_path / "one")
    assert (second.steps, second.updates) == (1, 1)
    second.step(samples, objective(server), **STEP)
    np.testing.assert_allclose(table(server), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"lora_rank": 8}, "has lora_rank 4, this run has 8"),
        ({"policy": "q"}, "has policy p, this run has q"),
        ({"tinker": {"base_url": None}}, "is at the server http"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    fields: dict[str, Any],
    sentence: str,
    server: TinkerServer,
    start: Start,
    samples: Path,
    tmp_path: Path,
) -> None:
    trainer = start()
    trainer.step(samples, objective(server), **STEP)
    trainer.save(tmp_path / "one")
    if "tinker" in fields:
        trainer.server.options = trainer.server.options.model_copy(update=fields["tinker"])
        fields = {}
    trainer.job = replace(trainer.job, **fields)
    with pytest.raises(BadCheckpoint, match=sentence):
        trainer.load(tmp_path / "one")


def test_a_checkpoint_that_the_server_has_lost_is_an_error(
    server: TinkerServer, start: Start, samples: Path, tmp_path: Path
) -> None:
    trainer = start()
    trainer.save(tmp_path / "one")
    server.checkpoints.clear()
    with pytest.raises(BadCheckpoint, match=r"no longer has tinker://\S+, the weights of the"):
        trainer.load(tmp_path / "one")


def update_beyond_checkpoint(
    trainer: TinkerTrainer, server: TinkerServer, samples: Path, folder: Path
) -> Any:
    """Make two updates, return the server's table, and go back to the checkpoint between them."""
    trainer.step(samples, objective(server), **STEP)
    trainer.save(folder / "one")
    trainer.step(samples, objective(server), **STEP)
    expected = table(server).copy()
    trainer.load(folder / "one")
    return expected


def test_a_lost_run_is_made_again_from_the_checkpoint(
    server: TinkerServer, start: Start, samples: Path, tmp_path: Path
) -> None:
    trainer = start()
    expected = update_beyond_checkpoint(trainer, server, samples, tmp_path)
    server.lose_runs()
    report = trainer.step(samples, objective(server), **STEP)
    assert "made again from the last checkpoint" in report.warnings[0]
    assert (report.steps, report.total_steps) == (1, 2)
    np.testing.assert_allclose(table(server), expected, atol=1e-9)


@pytest.mark.parametrize("fault", ["lose", "restart"])
def test_a_session_that_ends_in_the_middle_of_an_update_does_not_double_it(
    fault: str, server: TinkerServer, start: Start, samples: Path, tmp_path: Path
) -> None:
    trainer = start()
    expected = update_beyond_checkpoint(trainer, server, samples, tmp_path)
    server.faults["optim_step"] = [fault]  # its gradient is there
    trainer.step(samples, objective(server), **STEP)
    np.testing.assert_allclose(table(server), expected, atol=1e-9)


def test_updates_that_no_checkpoint_has_are_not_lost_without_an_error(
    server: TinkerServer, start: Start, samples: Path
) -> None:
    trainer = start()
    trainer.step(samples, objective(server), **STEP)
    server.lose_runs()
    with pytest.raises(LearnerFailed, match="does not know the training run"):
        trainer.step(samples, objective(server), **STEP)


class Killed(BaseException):
    """Ends a trainer as a kill does: it releases nothing."""


REQUESTS = ("create", "forward_backward", "optim_step", "optim_step_made", "save", "saved")


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_learner_that_is_killed_at_a_request_continues_without_a_double_update(
    request_name: str,
    server: TinkerServer,
    start: Start,
    samples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.limit = 1  # so that the dead learner's place is needed
    trainer = start()
    expected = update_beyond_checkpoint(trainer, server, samples, tmp_path)

    write = Journal.write

    def write_and_die(self: Journal, request: str, **fields: Any) -> None:
        write(self, request, **fields)
        if request == request_name:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Journal, "write", write_and_die)
        if request_name == "create":
            trainer._return_to(None)
        trainer.step(samples, objective(server), **STEP)
        trainer.save(tmp_path / "two")
    trainer._opened = False  # nobody releases its run
    assert not (tmp_path / "two").exists()
    again = start(checkpoint=tmp_path / "one")
    again.step(samples, objective(server), **STEP)
    np.testing.assert_allclose(table(server), expected, atol=1e-9)
    again.save(tmp_path / "two")
    assert len(server.adapters) == 1


def test_a_trainer_that_closes_leaves_no_run(server: TinkerServer, start: Start) -> None:
    start().close()
    assert server.adapters == {}


def test_an_export_is_an_adapter_of_the_base_with_its_address(
    server: TinkerServer, start: Start, samples: Path, tiny: Path, tmp_path: Path
) -> None:
    trainer = start()
    trainer.step(samples, objective(server), **STEP)
    trainer.save(tmp_path / "checkpoint")
    trainer.export_adapter(tmp_path / "adapter")
    check_adapter(tmp_path / "adapter", tiny)
    config = read_adapter_config(tmp_path / "adapter")
    assert (config.r, config.lora_alpha) == (4, 32)
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["target_modules"] == ["q_proj"]
    weights = read_tinker_weights(tmp_path / "adapter")
    assert weights is not None and weights.base_model == "tiny"
    assert {weights.sampler, weights.state} <= server.checkpoints.keys()
    [adapter] = server.adapters.values()
    trainer.export(tmp_path / "merged", dtype="fp32")
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    assert tensors(adapter)


def test_another_policy_is_trained_in_a_run_of_its_own(
    server: TinkerServer, start: Start, samples: Path, tmp_path: Path
) -> None:
    server.limit = 1
    trainer = start()
    trainer.step(samples, objective(server), **STEP)
    trainer.save(tmp_path / "p")
    first = table(server).copy()
    trainer.select("q", "r", None)
    assert (trainer.steps, table(server).any()) == (0, False)
    trainer.select("p", "r", tmp_path / "p")
    np.testing.assert_array_equal(table(server), first)


def test_the_journal_names_each_request_before_its_effect(
    server: TinkerServer, start: Start, samples: Path, tmp_path: Path
) -> None:
    trainer: TinkerTrainer = start()
    trainer.step(samples, objective(server), **STEP)
    trainer.save(tmp_path / "one")
    lines = [
        json.loads(line)["request"] for line in (tmp_path / "journal").read_text().splitlines()
    ]
    assert lines[-5:] == ["forward_backward", "optim_step", "optim_step_made", "save", "saved"]
