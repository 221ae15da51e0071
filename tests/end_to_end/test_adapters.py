"""A run that publishes its adapter: each version is served as it was trained."""

import re
from collections.abc import Callable
from typing import Any

from ltrain_train.policy import Policies

UPDATES = 3


def adapter_recipe(project: Any) -> str:
    """Write the recipe with a LoRA adapter that is published as it is; return its name.

    The adapter is held near the base, and the learning rate has a schedule.
    """
    text = (project.folder / "ltrain.toml").read_text()
    text = re.sub(r"lora_rank = 0\nupdates = \d+", f"lora_rank = 4\nupdates = {UPDATES}", text)
    text += 'kl_coefficient = 0.01\nwarmup_updates = 2\ndecay = "linear"\n'
    serve = '[serve]\npublish = "adapter"\nmax_adapters = 2\n\n[train]'
    (project.folder / "adapter.toml").write_text(text.replace("[train]", serve))
    return "adapter.toml"


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
    assert [wave["metrics"]["learning_rate"] for wave in trained] == [0.005, 0.01, 0.01]
    # a new adapter changes nothing
    assert [wave["metrics"]["kl_reference"] > 1e-9 for wave in trained] == [False, True, True]
    assert all(wave["outcomes"] == {"ok": wave["rollouts"]} for wave in trained)
    rows = made.sql(
        "SELECT DISTINCT toInt64(SpanAttributes['ltrain.policy.version']) AS version, "
        "SpanAttributes['gen_ai.response.model'] AS model FROM otel.spans "
        "WHERE ScopeName = 'ltrain.gateway' AND GenAiOp = 'chat' ORDER BY version"
    )
    assert [int(row["version"]) for row in rows] == [0, 1, 2]
    continued = made.train("adapter.toml", "--updates", str(UPDATES + 1))
    [last] = [wave for wave in continued if wave["mode"] == "train"]
    assert (last["version"], last["metrics"]["learning_rate"]) == (3, 0.005)
    assert last["metrics"]["kl_reference"] > 1e-9
    assert policies.read_version("two", 4).artifact == "adapter"
