"""Runs that publish their adapter: each version is served as it was trained, in both modes."""

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import polars as pl

from ltrain_train.policy import Policies

UPDATES = 3


def adapter_recipe(project: Any) -> str:
    """Write the recipe with a LoRA adapter that is published as it is; return its name."""
    text = (project.folder / "ltrain.toml").read_text()
    text = re.sub(r"lora_rank = 0\nupdates = \d+", f"lora_rank = 4\nupdates = {UPDATES}", text)
    serve = '[serve]\npublish = "adapter"\nmax_adapters = 2\n\n[train]'
    (project.folder / "adapter.toml").write_text(text.replace("[train]", serve))
    return "adapter.toml"


def overlapping_recipe(project: Any) -> str:
    """Write the same recipe with asynchronous waves that leave slow groups; return its name."""
    text = (project.folder / "adapter.toml").read_text()
    text = text.replace("[train]", '[train]\nmode = "async"')
    text = text.replace("[rollout]", "[rollout]\nspare_tasks = 4")
    (project.folder / "overlapping.toml").write_text(text)
    return "overlapping.toml"


def test_a_run_serves_its_adapters(project: Callable[[str], Any]) -> None:
    made = project("adapters")
    waves = made.train(adapter_recipe(made))
    policies = Policies(made.home)
    assert policies.versions("two") == [0, 1, 2, 3]
    manifests = [policies.read_version("two", version) for version in (1, 2, 3)]
    assert [(each.artifact, each.base) for each in manifests] == [("adapter", 0)] * 3
    assert [each.parent for each in manifests] == [0, 1, 2]
    assert manifests[0].size < policies.read_version("two", 0).size
    trained = [wave for wave in waves if wave["mode"] == "train"]
    assert [wave["version"] for wave in trained] == [0, 1, 2]
    # the learner's log-probabilities are those of the adapter that the server sampled with
    assert all(wave["metrics"]["drift_k3"] < 1e-6 for wave in trained), trained
    assert all(wave["outcomes"] == {"ok": wave["rollouts"]} for wave in trained)
    rows = made.sql(
        "SELECT DISTINCT toInt64(SpanAttributes['ltrain.policy.version']) AS version, "
        "SpanAttributes['gen_ai.response.model'] AS model FROM otel.spans "
        "WHERE ScopeName = 'ltrain.gateway' AND GenAiOp = 'chat' ORDER BY version"
    )
    assert [int(row["version"]) for row in rows] == [0, 1, 2]
    overlapped = made.train(overlapping_recipe(made))
    trained = [wave for wave in overlapped if wave["mode"] == "train"]
    # a wave is dispatched before the version of the previous one is published
    assert [wave["version"] for wave in trained] == [3, 3, 4]
    assert [wave["published"] for wave in trained] == [4, 5, 6]
    assert all(wave["outcomes"] == {"ok": wave["rollouts"]} for wave in trained)
    datasets = sorted((made.home / "datasets" / "two-turn-2").glob("train-?"))
    rollouts = [pl.read_parquet(each / "executions")["rollout_id"].to_list() for each in datasets]
    assert [len(each) for each in rollouts] == [wave["rollouts"] for wave in trained]
    assert len(rollouts) == UPDATES and len({*chain(*rollouts)}) == sum(map(len, rollouts))
