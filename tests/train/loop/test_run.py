"""What a run's learner continues from."""

import json
import logging
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp
from tests.train.policy.test_versions import write_model
from tests.transforms.conftest import RECIPE

from ltrain_collector.store import Store
from ltrain_train.learner.checkpoint import CheckpointRecord, fingerprint
from ltrain_train.loop.run import Plan, make_learner, warn_of_long_prompts
from ltrain_train.policy import Policies
from ltrain_transforms.recipe import Recipe

LOCK = cast(Any, SimpleNamespace(descriptors=()))


def plan(home: Path, **train: Any) -> Plan:
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | {"train": train})
    return Plan(recipe=recipe, folder=home, home=home)


@pytest.fixture
def policies(tmp_path: Path) -> Policies:
    """A policy with version 1, whose checkpoint rests on version 0."""
    policies = Policies(tmp_path)
    policies.register("sql", write_model(tmp_path / "model"))
    checkpoint = tmp_path / "runs" / "demo" / "checkpoints" / "1"
    checkpoint.mkdir(parents=True)
    record = CheckpointRecord(2, 1, fingerprint(policies.path("sql", 0)), 16, 32, 1, "r1")
    (checkpoint / "learner.json").write_text(json.dumps(asdict(record)))
    draft = write_model(tmp_path / "draft", fill=1)
    policies.publish_files(
        "sql", draft, parent=0, dataset="d1", recipe="r1", base=0, checkpoint=checkpoint
    )
    return policies


def test_a_new_run_continues_from_unrounded_weights(policies: Policies, tmp_path: Path) -> None:
    manifest = policies.read_version("sql", 1)
    assert (manifest.base, manifest.checkpoint) == (0, "runs/demo/checkpoints/1")
    base, learner = make_learner(plan(tmp_path), policies, 1, LOCK)
    assert (base, learner.job.base) == (0, policies.path("sql", 0))
    assert learner.job.checkpoint == tmp_path / "runs" / "demo" / "checkpoints" / "1"
    base, learner = make_learner(plan(tmp_path), policies, 0, LOCK)
    assert (base, learner.job.checkpoint) == (0, None)


def llm_call(input_tokens: int, operation: str = "chat") -> bytes:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="chat")
    span.trace_id, span.span_id = input_tokens.to_bytes(16), input_tokens.to_bytes(8)
    span.start_time_unix_nano = time.time_ns()
    span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = input_tokens
    span.attributes.add(key="gen_ai.operation.name").value.string_value = operation
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(("limit", "warns"), [(None, False), (1300, False), (1200, True)])
def test_a_stored_prompt_that_the_gateway_would_refuse_is_a_warning(
    tmp_path: Path, limit: int | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(f"chdb://{tmp_path}/store") as store, caplog.at_level(logging.WARNING):
        store.migrate()
        warn_of_long_prompts(store, 1)  # there is none yet
        assert not caplog.text
        for tokens in (7, 1200):
            insert_otlp(store, llm_call(tokens))
        insert_otlp(store, llm_call(9000, "invoke_agent"))  # the sum of its calls
        warn_of_long_prompts(store, limit)
    assert ("the store has a prompt of 1200 tokens, and the gateway" in caplog.text) == warns
    assert ("serve.max_model_len" in caplog.text) == warns


def test_without_a_checkpoint_that_fits_a_run_starts_from_rounded_weights_and_says_so(
    policies: Policies, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        base, learner = make_learner(plan(tmp_path, lora_rank=8), policies, 1, LOCK)
    assert (base, learner.job.base) == (1, policies.path("sql", 1))
    assert learner.job.checkpoint is None
    assert "has lora_rank 16, this run has 8" in caplog.text
    assert "Training starts from the rounded weights of v1, with a new optimizer." in caplog.text
    caplog.clear()
    (tmp_path / "runs" / "demo" / "checkpoints" / "1").rename(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING):
        base, learner = make_learner(plan(tmp_path), policies, 1, LOCK)
    assert (base, learner.job.checkpoint) == (1, None)
    assert "v1 of 'sql' has no checkpoint." in caplog.text
