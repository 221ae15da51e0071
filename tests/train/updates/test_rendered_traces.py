"""Reinforcement learning from traces of a service without the gateway, with a real learner."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.train.updates.test_stored_traces import TINY, TRAIN, train
from tests.transforms.conftest import OPENAI, Scene

from ltrain_collector.store import Store
from ltrain_train.policy import Policies
from ltrain_train.runs.plan import Plan
from ltrain_transforms.recipe import Recipe

TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %} </s>{% endif %}"
    " <sep> {% endfor %}"
)
"""Renders what the tiny model reads, and the end of an answer that it samples."""

RECIPE: dict[str, Any] = {
    "source": {"run": "demo"},
    "policy": [{"name": "sql", "token_source": "rendered", "served_as": {"sql-prod": 0}}],
    "reward": [{"name": "answer", "evaluation": "reward"}],
    "train": TRAIN,
}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    model = tmp_path / "tiny"
    subprocess.run([sys.executable, TINY, model], check=True, capture_output=True)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    for name in ("LTRAIN_GATEWAY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    recipe = Recipe.from_sections(RECIPE)
    return Plan(recipe=recipe, folder=tmp_path, home=tmp_path / "home", model=model)


def add_group(scene: Scene, task: str, model: str, *answers: str, reason: str = "stop") -> None:
    """Add a rollout for each answer of a service that records messages, and no token ids."""
    for sample, answer in enumerate(answers):
        attempt = scene.attempt(task, sample)
        attempt.dispatch()
        message = {"role": "assistant", "parts": [{"type": "text", "content": answer}]}
        prompt = {"role": "user", "parts": [{"type": "text", "content": "w1 w2"}]}
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.request.temperature": 0.8,
            "gen_ai.input.messages": json.dumps([prompt]),
            "gen_ai.output.messages": json.dumps([{**message, "finish_reason": reason}]),
            "gen_ai.usage.output_tokens": len(answer.split()) + 1,
        }
        attempt.emit("openai.chat", OPENAI, attributes)
        attempt.evaluate(float(sample % 2))
        attempt.close()


def test_a_service_without_the_gateway_trains_its_policy(plan: Plan, tmp_path: Path) -> None:
    scene = Scene()
    add_group(scene, "t1", "sql", "w3 w4", "w5", "w6 w7", "w8")
    add_group(scene, "t2", "gpt-5", "w3", "w4")
    add_group(scene, "t3", "sql", "w3", "w4", reason="length")
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        first = train(plan, store)
    assert first.version == 1
    metrics = first.update.report.metrics
    assert (first.update.report.rows, metrics["rendered_rows"]) == (4, 4)
    assert (metrics["rendered_k3"], metrics["drift_tokens"]) == (0, 0)
    rows = first.dataset.table("samples")
    assert rows["tokens"].to_list() == ["rendered"] * 4
    assert rows["temperature"].to_list() == pytest.approx([0.8] * 4)
    reasons = dict(first.dataset.drops.group_by("reason").len().iter_rows())
    assert {name: reasons.get(name) for name in ("other_model", "cut")} == {
        "other_model": 2,
        "cut": 2,
    }

    add_group(scene, "t4", "sql-prod", "w3 w4", "w5", "w6 w7", "w8")
    with Store.open(f"chdb://{tmp_path / 'store'}") as store:
        insert_otlp(store, scene.request())
        second = train(plan, store)
    assert (second.version, second.update.report.rows) == (2, 4)
    assert second.update.report.metrics["rendered_k3"] > 0
    assert second.update.report.metrics["staleness_max"] == 1
    assert Policies(plan.home).versions("sql") == [0, 1, 2]
    ledger = pl.read_parquet(Policies(plan.home).path("sql", 2) / "rollouts.parquet")
    assert ledger.height == 4
