"""Learners with adapters and ranks, bad input, and the processes of a learner that ended."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from math import exp
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

from ltrain_instrument.errors import LtrainError
from ltrain_train.errors import BadBase, BadCheckpoint, LearnerFailed
from ltrain_train.learner import Objective, make_batch, split_into_steps
from ltrain_train.learner.checkpoint import check_fit, fingerprint, make_record, write_record
from ltrain_train.learner.client import LearnerClient
from ltrain_train.learner.protocol import Job
from ltrain_train.policy import Reference
from ltrain_train.processes import ChildDied
from ltrain_transforms.recipe import Train, Verl

HERE = Path(__file__).parent
Rows = list[dict[str, Any]]
Make = Callable[..., Rows]
Write = Callable[[Rows], Path]
Plain = Callable[..., dict[str, Any]]

ADAPTER = Train(
    lora_rank=4,
    dtype="fp32",
    learning_rate=1e-2,
    steps_per_wave=3,
    loss_weighting="call",
    drift_warning=1.0,  # the rows have random log-probabilities
    drift_limit=2.0,
)
OBJECTIVE = Objective.from_train(ADAPTER)
ENGINE = {
    "entropy_checkpointing": True,
    "entropy_from_logits_chunk_size": 5,
    "forward_prefetch": True,
    "optimizer_offload": True,
}
"""Options of verl's engine that change no number."""


def flat(rows: list[list[float]]) -> list[float]:
    return [x for row in rows for x in row]


def mean_k3(samples: Path, policy: list[list[float]], reference: list[list[float]]) -> float:
    """Return the weighted mean of k3 over the trained tokens."""
    rows = pl.read_parquet(samples)
    weights = [
        weight * mask
        for row in rows.iter_rows(named=True)
        for weight, mask in zip(row["loss_weight"], row["response_mask"], strict=True)
    ]
    gaps = [a - b for a, b in zip(flat(policy), flat(reference), strict=True)]
    values = [exp(-gap) - 1 + gap for gap in gaps]
    total = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return float(total / sum(weights))


@pytest.mark.nightly
def test_the_example_of_the_page_runs_with_dtype_auto(
    tiny: Path, tmp_path: Path, make_rows: Make, write: Write
) -> None:
    """The recipe bounds no drift: the rows have random log-probabilities."""
    page = (HERE.parents[2] / "docs" / "learner.md").read_text()
    [example] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "ltrain.toml").write_text(
        '[[policy]]\nname = "sql"\n[[reward]]\nname = "a"\nevaluation = "a"\n'
        "[train]\nlora_rank = 4\ndrift_warning = 1.0\ndrift_limit = 2.0\n"
    )
    (tmp_path / ".ltrain" / "models").mkdir(parents=True)
    (tmp_path / ".ltrain" / "models" / "smollm2").symlink_to(tiny)
    (tmp_path / "dataset" / "samples").mkdir(parents=True)
    write(make_rows(4)).rename(tmp_path / "dataset" / "samples" / "1.parquet")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "4"
    exported = json.loads((tmp_path / "policies" / "sql" / "draft" / "config.json").read_text())
    assert exported["model_type"] == "llama"


def test_a_lora_run_continues_in_another_process_and_exports_merged_weights(
    tiny: Path, tmp_path: Path, make_rows: Make, write: Write, reference: Plain
) -> None:
    """It also measures its divergence: from the model without an adapter, and from a version.

    In between it trains another policy, which leaves no trace.
    """
    samples = write(make_rows(10))  # three optimizer steps, of 4, 4 and 2 rows
    diverging = replace(OBJECTIVE, kl_coefficient=0.1)
    with LearnerClient(ADAPTER, tiny, directory=tmp_path, policy="tiny") as first:
        base = first.log_probs(samples)
        report = first.step(samples, OBJECTIVE, version=0)
        assert (report.rows, report.steps, report.total_steps) == (10, 3, 3)
        steps = list(split_into_steps(pl.read_parquet(samples), 3, "0.0"))
        batches = [make_batch(rows, ranks=1, tokens=768, shared=True) for rows in steps]
        computed = [each.computed_tokens for each in batches]
        assert len(computed) == 3 and report.metrics["computed_tokens"] == sum(computed)
        first.save(tmp_path / "checkpoint")
        first.export_adapter(tmp_path / "adapter")
        saved = first.log_probs(samples)
        expected = first.step(samples, OBJECTIVE, version=1)
        log_probs = first.log_probs(samples)
        first.export(tmp_path / "v2")
        first.load(tmp_path / "checkpoint")
        divergence = first.step(samples, diverging, version=1).metrics["kl_reference"]
    assert divergence == pytest.approx(mean_k3(samples, saved, base), rel=1e-4)
    assert divergence > 1e-5
    merged = reference(tmp_path / "v2", samples)
    assert flat(log_probs) == pytest.approx(flat(merged["log_probs"]), abs=1e-4)
    settings: dict[str, Any] = {
        "directory": tmp_path,
        "policy": "tiny",
        "checkpoint": tmp_path / "checkpoint",
        "reference": Reference(tiny, tmp_path / "adapter"),
    }
    with LearnerClient(ADAPTER, tiny, **settings) as second:
        result = second.step(samples, OBJECTIVE, version=1)
        assert result.metrics == expected.metrics
        assert result.total_steps == 6
        assert second.log_probs(samples) == log_probs
        second.load(tmp_path / "checkpoint")
        assert second.step(samples, diverging, version=1).metrics["kl_reference"] < 1e-9
        second.select("other", "r2", None)  # it begins where the first one began
        assert second.log_probs(samples) == base
        assert second.step(samples, OBJECTIVE, version=0).metrics == report.metrics
        second.select("tiny", "r1", tmp_path / "checkpoint")
        assert second.step(samples, OBJECTIVE, version=1).metrics == expected.metrics
        assert second.log_probs(samples) == log_probs
    sizes = [file.stat().st_size for file in (tmp_path / "checkpoint").rglob("*.pt")]
    assert sum(sizes) < (tiny / "model.safetensors").stat().st_size


@pytest.mark.nightly
def test_an_update_that_breaks_the_policy_is_undone(
    tiny: Path, tmp_path: Path, make_rows: Make, write: Write
) -> None:
    samples = write(make_rows(10))
    breaking = replace(OBJECTIVE, learning_rate=1e30)
    with LearnerClient(ADAPTER, tiny, directory=tmp_path, policy="tiny") as learner:
        before = learner.log_probs(samples)
        for checkpoint in (None, tmp_path / "checkpoint"):
            if checkpoint is not None:
                learner.save(checkpoint)
            report = learner.step(samples, breaking, version=0)
            assert (report.steps, report.undone, report.total_steps) == (0, 3, 0)
            assert report.warnings[0].startswith("The update was undone, because the policy's log")
            assert learner.log_probs(samples) == before
        report = learner.step(samples, OBJECTIVE, version=0)  # its rate is lower
        assert (report.steps, report.undone) == (3, 0)


def test_two_ranks_with_every_term_of_the_loss_equal_one_full_batch(
    tiny: Path, other: Path, tmp_path: Path, make_rows: Make, write: Write, reference: Plain
) -> None:
    train = Train(
        loss="cispo",
        correction="sequence_tis",
        correction_cap=1.1,
        entropy_coefficient=0.05,
        kl_coefficient=0.2,
        lora_rank=0,
        dtype="fp32",
        learning_rate=1e-3,
        tokens_per_micro_batch=64,
        loss_weighting="rollout",
        verl=Verl.model_validate({"optimizer": {"weight_decay": 0.5}, "engine": ENGINE}),
    )
    samples = write(make_rows(11))  # odd: one rank gets a row without a token to train
    options = {"loss": "cispo", "correction": "sequence_tis", "cap": 1.1, "lr": 1e-3}
    options |= {
        "weight_decay": 0.5,
        "entropy": 0.05,
        "kl": 0.2,
        "kl_in": "loss",
        "kl_estimator": "k3",
    }
    expected = reference(tiny, samples, steps=2, reference=str(other), **options)
    start: dict[str, Any] = {"directory": tmp_path, "policy": "tiny", "ranks": 2}
    with LearnerClient(train, tiny, reference=Reference(other), **start) as learner:
        objective = Objective.from_train(train)
        reports = [learner.step(samples, objective, version=0) for _ in range(2)]
        learner.export(tmp_path / "v2")
        result = learner.log_probs(samples)
        _ranks_below(psutil.Process())[1].kill()
        for _ in range(2):  # the rank that lives fails at its connection the first time
            with pytest.raises(LearnerFailed, match=r"The learner failed: .*died") as failure:
                learner.log_probs(samples)
            assert "gloo" not in str(failure.value)
    for name in ("loss", "grad_norm"):
        numbers = [report.metrics[name] for report in reports]
        assert numbers == pytest.approx(expected[name], rel=1e-5, abs=1e-6)
    assert flat(result) == pytest.approx(flat(expected["log_probs"]), abs=1e-4)
    exported = reference(tmp_path / "v2", samples)
    assert flat(result) == pytest.approx(flat(exported["log_probs"]), abs=1e-4)


def test_a_directory_without_a_base_model_is_refused(tmp_path: Path) -> None:
    with (
        LearnerClient(ADAPTER, tmp_path / "no", directory=tmp_path, policy="p") as learner,
        pytest.raises(BadBase, match=r"No model directory at .*/no\. Name one"),
    ):
        learner.wait(timeout=120)


@pytest.mark.nightly
def test_an_owner_with_many_open_files_hears_its_learner(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with (
            LearnerClient(ADAPTER, tmp_path / "no", directory=tmp_path, policy="p") as learner,
            pytest.raises(BadBase),
        ):
            learner.wait(timeout=120)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_checkpoint_of_another_base_is_refused_before_anything_starts(
    tiny: Path, tmp_path: Path
) -> None:
    record = {
        "format": 1, "base": "other", "lora_rank": 4, "lora_alpha": 8, "ranks": 1,
        "recipe": "", "steps": 1, "updates": 1,
    }  # fmt: skip
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "learner.json").write_text(json.dumps(record))
    settings: dict[str, Any] = {
        "directory": tmp_path,
        "policy": "p",
        "checkpoint": tmp_path / "old",
    }
    with (
        LearnerClient(ADAPTER, tiny, **settings) as learner,
        pytest.raises(BadCheckpoint, match="has base other, this run has"),
    ):
        learner.wait(timeout=60)


def test_a_checkpoint_of_another_policy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")

    def job(policy: str) -> Job:
        return Job.from_train(ADAPTER, base=tmp_path, policy=policy, recipe="r")

    write_record(tmp_path, make_record(job("a"), fingerprint(tmp_path)))
    check_fit(tmp_path, job("a"))
    with pytest.raises(BadCheckpoint, match="has policy a, this run has b"):
        check_fit(tmp_path, job("b"))
    record = json.loads((tmp_path / "learner.json").read_text())
    del record["policy"], record["sha256"]  # an older version of ltrain wrote it
    (tmp_path / "learner.json").write_text(json.dumps(record))
    check_fit(tmp_path, job("b"))


def test_a_request_before_the_start_is_refused(tiny: Path, tmp_path: Path) -> None:
    learner = LearnerClient(ADAPTER, tiny, directory=tmp_path, policy="p")
    with pytest.raises(LtrainError, match="before it is started"):
        learner.export(tmp_path / "v0")
    learner.close()


OWNER = """
import sys, time
from pathlib import Path
from ltrain_train.learner.client import LearnerClient
from ltrain_transforms.recipe import Train
learner = LearnerClient(
    Train(lora_rank=0, dtype="fp32"),
    Path(sys.argv[1]),
    directory=Path(sys.argv[2]),
    policy="p",
    ranks=int(sys.argv[3]),
)
learner.start()
learner.wait(timeout=180)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_learner_listens_on_loopback_and_ends_with_a_killed_owner(
    tiny: Path, tmp_path: Path, ranks: int
) -> None:
    command = [sys.executable, "-c", OWNER, str(tiny), str(tmp_path), str(ranks)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == "ready\n"
        family = psutil.Process(owner.pid).children(recursive=True)
        listening = [address for child in family for address in _listening(child)]
        assert any("raylet" in child.name() for child in family) == (ranks > 1)
        assert len(listening) > 3 if ranks > 1 else len(listening) <= 1  # gloo's own
        assert all(ip_address(address).is_loopback for address in listening), listening
        [scratch] = Path(tempfile.gettempdir()).glob(f"ltrain-learner-{owner.pid}-*")
        assert scratch.stat().st_mode & 0o777 == 0o700
        os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    gone, alive = psutil.wait_procs(family, timeout=20)
    assert (len(gone), alive) == (len(family), [])
    assert not scratch.exists()


def test_the_death_of_a_learner_is_reported_with_its_log(tiny: Path, tmp_path: Path) -> None:
    with LearnerClient(ADAPTER, tiny, directory=tmp_path, policy="p") as learner:
        service_of(learner).kill()
        with pytest.raises(ChildDied, match="learner ended by signal SIGKILL"):
            learner.wait(timeout=60)


@pytest.mark.nightly
def test_a_learner_that_hangs_is_stopped_and_named(
    tiny: Path, tmp_path: Path, make_rows: Make, write: Write
) -> None:
    samples = write(make_rows(4))
    with LearnerClient(ADAPTER, tiny, directory=tmp_path, policy="p") as learner:
        learner.step(samples, OBJECTIVE, version=0)
        assert learner.job.scratch is not None
        beat = learner.job.scratch / "heartbeat"
        first = beat.stat().st_mtime_ns
        time.sleep(1.1)
        learner.step(samples, OBJECTIVE, version=1)
        assert beat.stat().st_mtime_ns > first, "a rank shows progress while it computes"
        process = service_of(learner)
        process.suspend()
        learner.hang_timeout = 3.0
        with pytest.raises(LearnerFailed, match=r"no progress for \d+ s in the request 'step'"):
            learner.step(samples, OBJECTIVE, version=2)
        assert not process.is_running()


def _listening(process: psutil.Process) -> list[str]:
    """Return the addresses that a process listens on, IPv4 ones without IPv6's prefix."""
    connections = process.net_connections("inet")
    result = [each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN]
    return [address.removeprefix("::ffff:") for address in result]


def _ranks_below(owner: psutil.Process) -> list[psutil.Process]:
    """Return the processes of the ranks that Ray runs."""
    family = owner.children(recursive=True)
    return [each for each in family if each.name().startswith("ray::RankWorker")]


def service_of(learner: LearnerClient) -> psutil.Process:
    """Return the learner's own process, not its guard's, as soon as it runs."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for guard in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # the process of an earlier test ends meanwhile
                if str(learner.job.scratch) not in guard.cmdline():
                    continue
                for child in guard.children():
                    if child.cmdline()[1:3] == ["-m", "ltrain_train.learner.service"]:
                        return child
        time.sleep(0.05)
    raise AssertionError("no learner was started")
