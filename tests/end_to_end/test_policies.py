"""Several policies in one run: adapters of one base in one vLLM, and one learner for them."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from safetensors.torch import load_file, save_file

from ltrain_train.policy import Policies
from ltrain_transforms.datasets import Dataset


@pytest.mark.nightly
def test_two_agents_with_opposite_rewards_learn_opposite_things(
    project: Callable[..., Any],
) -> None:
    made = project("pair", "pair")
    sharpen_head(made)
    waves = [wave for wave in made.train("ltrain.toml") if wave["mode"] == "train"]
    assert [wave["policy"] for wave in waves] == ["low", "high"] * (len(waves) // 2)
    last = waves[-1]["evaluations"]
    assert last["low"] > 0.8 and last["high"] < 0.2, [wave["evaluations"] for wave in waves]
    # the same learner process trained both, each from its own adapter and optimizer
    assert all(wave["metrics"].get("drift_k3", 0.0) < 1e-6 for wave in waves), waves
    assert [log.name for log in (made.home / "logs").glob("learner*.log")] == ["learner.log"]
    check_versions(made, [wave for wave in waves if wave["published"] is not None])
    check_datasets(made)


def sharpen_head(made: Any) -> None:
    """Enlarge the head's weights, with which an adapter can make a word likely."""
    file = made.model / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] *= 16
    save_file(tensors, file, metadata={"format": "pt"})


def check_versions(made: Any, published: list[dict[str, Any]]) -> None:
    """Check the versions of each policy; the frozen one is what it was, byte for byte."""
    policies = Policies(made.home)
    for name in ("low", "high"):
        own = [wave["published"] for wave in published if wave["policy"] == name]
        assert policies.current(name) == len(own)
        assert policies.read_version(name, len(own)).artifact == "adapter"
    assert policies.versions("still") == [0] and policies.current("still") == 0
    for file in ("model.safetensors", "config.json"):
        assert (policies.path("still", 0) / file).read_bytes() == (made.model / file).read_bytes()


def check_datasets(made: Any) -> None:
    """Check that each policy was trained on its own calls, by its own reward."""
    rewards = dict[str, pl.DataFrame]()
    for name in ("low", "high"):
        dataset = Dataset.open(made.home / "datasets" / "pair" / f"train-0-{name}")
        assert dataset.table("samples")["policy"].unique().to_list() == [name]
        assert dataset.table("rewards")["rule"].unique().to_list() == [name]
        rewards[name] = dataset.table("executions")
    assert rewards["low"].height == rewards["high"].height == 96
    [counts] = made.sql(
        "SELECT countIf(SpanAttributes['ltrain.policy.name'] = 'still') AS still, count() AS calls "
        "FROM otel.spans WHERE ScopeName = 'ltrain.gateway' AND GenAiOp = 'chat'"
    )
    assert 3 * int(counts["still"]) == int(counts["calls"]) == 3 * 96 * 8
