"""Advantages from literal rewards; the expected numbers of grpo are those of verl 0.9.1."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe

ReadBack = Callable[[Any], pl.DataFrame]
Tables = dict[str, pl.DataFrame]


def edited(path: Path, more: str) -> Recipe:
    path.write_text(path.read_text() + more)
    return Recipe.load(path)


def by_sample(tables: Tables, column: str) -> list[Any]:
    """Return `column` of the transitions by sample index and call order."""
    where = tables["executions"].select("execution_id", "sample_index")
    joined = tables["transitions"].join(where, "execution_id")
    return joined.sort("sample_index", "t")[column].to_list()


def reasons(tables: Tables, stage: str) -> dict[str, str]:
    drops = tables["drops"].filter(pl.col("stage") == stage)
    return dict(drops.select("id", "reason").iter_rows())


def group(scene: Any, rewards: list[float], task: str = "t1") -> list[Any]:
    made = []
    for sample, reward in enumerate(rewards):
        rollout = scene.attempt(task, sample)
        rollout.llm()
        rollout.evaluate(reward)
        made.append(rollout.close())
    return made


def test_grpo_equals_verls(scene: Any, read_back: ReadBack, recipe: Recipe) -> None:
    group(scene, [1.0, 0.0, 0.0, 0.5])
    tables = derive(read_back(scene), recipe).tables
    expected = [1.3055798, -0.7833479, -0.7833479, 0.2611160]
    assert by_sample(tables, "outcome_advantage") == pytest.approx(expected, abs=1e-6)
    assert by_sample(tables, "advantage") == pytest.approx(expected, abs=1e-6)


def test_all_calls_of_an_execution_share_its_outcome_advantage(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    first, _ = group(scene, [1.0, 0.0])
    first.spans.clear()
    first.llm("write")
    first.llm("rewrite")
    first.evaluate(1.0)
    first.close()
    tables = derive(read_back(scene), recipe).tables
    expected = [0.7071058, 0.7071058, -0.7071058]
    assert by_sample(tables, "outcome_advantage") == pytest.approx(expected, abs=1e-6)


def test_executions_alone_or_without_spread_are_drops(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    (alone,) = group(scene, [1.0], "single")
    same = group(scene, [1.0, 1.0], "same")
    tables = derive(read_back(scene), recipe).tables
    assert reasons(tables, "groups") == {
        alone.execution: "alone",
        same[0].execution: "no_spread",
        same[1].execution: "no_spread",
    }
    assert tables["samples"].is_empty()
    flat = tables["transitions"].filter(pl.col("group_id") == "demo/train/0/same")
    assert flat["advantage"].to_list() == [0.0, 0.0]


def test_a_group_with_process_rewards_only_is_trained(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    for sample, error in enumerate(("boom()", "")):
        rollout = scene.attempt("t1", sample)
        rollout.llm()
        rollout.tool(error=error)
        rollout.evaluate(0.0)
        rollout.close()
    tables = derive(read_back(scene), recipe).tables
    assert by_sample(tables, "outcome_advantage") == [0.0, 0.0]
    assert by_sample(tables, "advantage") == pytest.approx([-0.1, 0.1])
    assert tables["samples"].height == 2


def failing(scene: Any) -> None:
    """Play three rollouts: fail then succeed, succeed, fail then fail."""
    for sample, errors in enumerate((("boom()", ""), ("",), ("boom()", "boom()"))):
        rollout = scene.attempt("t1", sample)
        for node, error in zip(("write", "rewrite"), errors, strict=False):
            rollout.llm(node)
            rollout.tool(error=error)
        rollout.evaluate(0.0)
        rollout.close()


def test_reward_to_go_minus_the_mean_at_the_same_turn_index(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    failing(scene)
    tables = derive(read_back(scene), recipe).tables
    assert by_sample(tables, "reward") == pytest.approx([-0.2, 0.0, 0.0, -0.2, -0.1])
    assert by_sample(tables, "returns") == pytest.approx([-0.2, 0.0, 0.0, -0.3, -0.1])
    mean = -0.5 / 3
    expected = [-0.2 - mean, 0.05, -mean, -0.3 - mean, -0.05]
    assert by_sample(tables, "process_advantage") == pytest.approx(expected)


def test_parallel_calls_share_a_turn_index_and_are_not_peers(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        began = rollout.clock
        rollout.llm("write")
        ended, rollout.clock = rollout.clock, began
        rollout.llm("write")
        rollout.clock = ended
        if sample:
            rollout.llm("write")
            rollout.tool(error="boom()")
        rollout.evaluate(float(sample))
        rollout.close()
    tables = derive(read_back(scene), recipe).tables
    llm = tables["calls"].filter(kind="llm").sort("execution_id", "seq")
    assert sorted(llm["turn_index"].to_list()) == [0, 0, 0, 0, 1]
    assert by_sample(tables, "returns") == pytest.approx([0.0, 0.0, -0.2, -0.2, -0.2])
    assert by_sample(tables, "process_advantage") == pytest.approx([0.1, 0.1, -0.1, -0.1, 0.0])


def test_a_call_without_a_peer_has_no_process_advantage(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    for sample, nodes in enumerate((("write",), ("write", "rewrite"))):
        rollout = scene.attempt("t1", sample)
        for node in nodes:
            rollout.llm(node)
        rollout.tool(error="boom()")
        rollout.evaluate(float(sample))
        rollout.close()
    tables = derive(read_back(scene), recipe).tables
    assert by_sample(tables, "process_advantage") == [0.0, 0.0, 0.0]
    assert by_sample(tables, "returns") == pytest.approx([-0.2, -0.2, -0.2])


@pytest.mark.parametrize(
    ("process", "returns"),
    [
        ('returns = "uniform"', [-0.2, -0.2, 0.0, -0.3, -0.3]),
        ('returns = "discounted"\ngamma = 0.5', [-0.2, 0.0, 0.0, -0.25, -0.1]),
        ('returns = "discounted"\ngamma = 0.0', [-0.2, 0.0, 0.0, -0.2, -0.1]),
    ],
)
def test_the_other_kinds_of_returns(
    scene: Any, read_back: ReadBack, recipe_file: Path, process: str, returns: list[float]
) -> None:
    failing(scene)
    recipe = edited(recipe_file, f'[credit.process]\nbaseline = "none"\nweight = 2.0\n{process}\n')
    tables = derive(read_back(scene), recipe).tables
    assert by_sample(tables, "returns") == pytest.approx(returns)
    assert by_sample(tables, "process_advantage") == pytest.approx(returns)
    assert by_sample(tables, "advantage") == pytest.approx([2 * one for one in returns])


def test_max_groups_selects_the_widest_groups(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    narrow = group(scene, [0.4, 0.5], "narrow")
    wide = group(scene, [0.0, 1.0], "wide")
    tables = derive(read_back(scene), edited(recipe_file, "[filter]\nmax_groups = 1\n")).tables
    assert reasons(tables, "groups") == {one.execution: "low_spread" for one in narrow}
    sampled = tables["samples"]["execution_id"].to_list()
    assert sorted(sampled) == sorted(one.execution for one in wide)


def test_executions_that_do_not_count_are_not_compared(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    group(scene, [1.0, 0.0])
    unrewarded = scene.attempt("t1", 2)
    unrewarded.llm()
    unrewarded.close()
    infra = scene.attempt("t1", 3)
    infra.evaluate(9.0)
    infra.close("infra")
    late = scene.attempt("t1", 4)
    late.evaluate(9.0)
    late.close(missing=1)
    tables = derive(read_back(scene), recipe).tables
    expected = [0.7071058, -0.7071058]
    assert by_sample(tables, "outcome_advantage") == pytest.approx(expected, abs=1e-6)
    assert reasons(tables, "executions") == {
        unrewarded.execution: "unrewarded",
        infra.execution: "infra",
        late.execution: "incomplete",
    }


def test_failed_agents_can_be_dropped(scene: Any, read_back: ReadBack, recipe_file: Path) -> None:
    group(scene, [1.0, 0.0])
    failed = scene.attempt("t1", 2)
    failed.llm()
    failed.evaluate(0.0)
    failed.close("timeout")
    tables = derive(read_back(scene), edited(recipe_file, '[filter]\nfailed = "drop"\n')).tables
    assert reasons(tables, "executions") == {failed.execution: "failed"}
    assert by_sample(tables, "outcome_advantage")[0] == pytest.approx(0.7071058, abs=1e-6)


def test_step_estimators_compare_the_states_of_traces(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    for sample, (table, reward) in enumerate((("singers", 1.0), ("singers", 0.0), ("bands", 0.0))):
        rollout = scene.attempt("t1", sample)
        rollout.llm("write", state={"table": table})
        rollout.evaluate(reward)
        rollout.close()
    tables = derive(read_back(scene), edited(recipe_file, "[credit.step]\nweight = 2.0\n")).tables
    assert by_sample(tables, "step_advantage") == [0.5, -0.5, 0.0]
    fused = [1.1547005 + 1.0, -0.5773503 - 1.0, -0.5773503]
    assert by_sample(tables, "advantage") == pytest.approx(fused, abs=1e-5)


def test_transitions_cover_every_policy_of_the_recipe(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    policies = 'policy = [{ name = "sql", agents = ["write"] }, { name = "judge" }]'
    text = recipe_file.read_text()
    recipe_file.write_text(text.replace(text.split("\n")[2], policies))
    for sample in (0, 1):
        rollout = scene.attempt("t1", sample)
        rollout.llm("write")
        rollout.llm("write", gateway={"ltrain.policy.name": "other"})
        rollout.llm("rewrite", gateway={"ltrain.policy.name": "judge"})
        rollout.evaluate(float(sample))
        rollout.close()
    tables = derive(read_back(scene), Recipe.load(recipe_file)).tables
    assert by_sample(tables, "policy") == ["sql", "judge"] * 2
    expected = [-0.7071058, -0.7071058, 0.7071058, 0.7071058]
    assert by_sample(tables, "advantage") == pytest.approx(expected)
