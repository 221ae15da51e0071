"""What `ltrain eval` refuses before it starts anything, and what comes from the recipe."""

from pathlib import Path
from typing import Any

import pytest
from tests.train.policy.test_versions import write_model
from tests.transforms.conftest import RECIPE

from ltrain_instrument.errors import LtrainError
from ltrain_train.errors import BadModel, BadRun, DifferentBases, UnknownVersion
from ltrain_train.evaluation.plan import EvaluationOptions, EvaluationPlan, find_versions, make_plan
from ltrain_train.runs.waves import imposed_sampling
from ltrain_transforms.recipe import Recipe

ROLLOUT = """
[rollout]
tasks = "train.jsonl"
validation = "held-out.jsonl"
agent = "agent:solve"
reward = "reward:score"
workers = 3
agent_sees = ["input", "tools"]

[serve]
max_model_len = 512
"""
AGENT = {"agent": "a:solve", "reward": "r:score"}


def plan_of(project: Any, policy: str = "policy@0", **options: Any) -> EvaluationPlan:
    options = {"rollout": AGENT, "tasks": project.folder / "held-out.jsonl"} | options
    return make_plan(EvaluationOptions(policies=[policy], **options), project.home)


def test_a_name_alone_is_the_current_version(project: Any) -> None:
    policies = project.policies
    policies.promote("policy", 2)
    found = find_versions(policies, ["policy@0", "policy", "policy@current", "policy@1"])
    assert list(map(str, found)) == ["policy@0", "policy@2", "policy@2", "policy@1"]
    assert [each.wave for each in found] == [0, 1, 2, 3]
    with pytest.raises(UnknownVersion, match=r"has no version 7\. Choose from: 0, 1, 2\."):
        find_versions(policies, ["policy@7"])
    with pytest.raises(UnknownVersion, match=r"Unknown policy 'other'\. Policies: policy\."):
        find_versions(policies, ["other"])
    with pytest.raises(UnknownVersion, match=r"does not name a version\. Write NAME@VERSION"):
        find_versions(policies, ["policy@best"])
    path = policies.path("policy", 1) / "model.safetensors"
    path.chmod(0o644)
    path.write_bytes(b"short")
    with pytest.raises(BadModel, match="is damaged"):
        find_versions(policies, ["policy@1"])


def test_versions_of_policies_with_one_base_are_compared_and_others_are_refused(
    project: Any, tmp_path: Path
) -> None:
    policies = project.policies
    policies.register("twin", tmp_path / "model")
    policies.register("other", write_model(tmp_path / "another", fill=9))
    assert len(find_versions(policies, ["policy@1", "twin@0"])) == 2
    sentence = "policy@1 and other@0 have different bases: the model of policy@0 and other@0 differ"
    with pytest.raises(DifferentBases, match=sentence):
        find_versions(policies, ["policy@1", "other@0"])


def test_the_recipe_names_agent_reward_tasks_and_serving(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    (project.folder / "ltrain.toml").write_text(RECIPE + ROLLOUT)
    plan = plan_of(project, tasks=None, rollout={"agent": None, "timeout": 5.0})
    assert (plan.program.agent, plan.program.reward) == ("agent:solve", "reward:score")
    assert (plan.program.workers, plan.program.timeout) == (3, 5.0)
    assert plan.program.agent_sees == ("input", "tools")
    assert (plan.name, len(plan.tasks), plan.planned) == ("eval-held-out", 5, 5)
    assert "--max-model-len 512" in " ".join(plan.serve)
    assert plan.rewards
    sampled = plan_of(project, samples=3, temperature=1.0, run="mine", rollout=AGENT)
    assert (sampled.program.agent, sampled.planned, sampled.name) == ("a:solve", 15, "mine")
    assert (plan.temperature, sampled.temperature) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("keys", "options", "expected"),
    [
        ("", {}, (1, 0.0)),
        ("validation_samples = 3", {}, (3, 1.0)),
        ("validation_samples = 3", {"samples": 1}, (1, 0.0)),
        ("validation_temperature = 0.5", {}, (1, 0.5)),
        ("validation_temperature = 0.5", {"samples": 2}, (2, 0.5)),
        ("validation_temperature = 0.5", {"temperature": 0.0}, (1, 0.0)),
    ],
)
def test_an_evaluation_samples_as_a_validation_of_the_run(
    project: Any,
    monkeypatch: pytest.MonkeyPatch,
    keys: str,
    options: dict[str, Any],
    expected: tuple[int, float],
) -> None:
    monkeypatch.chdir(project.folder)
    recipe = (RECIPE + ROLLOUT).replace("[rollout]", f"[rollout]\n{keys}")
    (project.folder / "ltrain.toml").write_text(recipe)
    plan = plan_of(project, **options)
    assert (plan.samples, plan.temperature) == expected
    if not options:
        sampling = imposed_sampling(Recipe.load(project.folder / "ltrain.toml"), "val")
        assert sampling == {"sampling": {"temperature": expected[1]}, "policy_sampling": {}}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tasks": None}, r"An evaluation needs tasks\. Name a JSONL file"),
        ({"rollout": {"agent": "a:solve"}}, r"needs an agent and a reward function\. Add --reward"),
        ({"rollout": {}}, r"Add --agent and --reward, or a recipe"),
        ({"samples": 4}, r"--samples 4 needs a temperature above 0.*Add --temperature 1"),
        ({"samples": 4, "temperature": 0.0}, r"needs a temperature above 0"),
        ({"tasks": Path("absent.jsonl")}, r"Cannot read tasks from absent\.jsonl"),
        ({"recipe": Path("absent.toml")}, r"No recipe at absent\.toml"),
    ],
)
def test_what_is_missing_is_one_sentence(
    project: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], sentence: str
) -> None:
    monkeypatch.chdir(project.folder)
    with pytest.raises(LtrainError, match=sentence):
        plan_of(project, **options)


def test_a_recipe_without_agent_is_no_error_before_it_is_needed(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    (project.folder / "ltrain.toml").write_text(RECIPE)
    assert plan_of(project).program.agent == "a:solve"
    with pytest.raises(BadRun, match="or a recipe with a"):
        plan_of(project, rollout={})
