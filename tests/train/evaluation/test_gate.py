"""The gate `eval`: a candidate solves the held-out tasks before it answers users."""

from typing import Any

import pytest

from ltrain_transforms.deployment_file import (
    Deployment,
    Stage,
    read_deployments,
    record_deployment,
)

RECIPE = """
[rollout]
tasks = "held-out.jsonl"
validation = "held-out.jsonl"
agent = "plain:solve"
reward = "scores:matches"
agent_sees = ["input"]

[[policy]]
name = "policy"

[[reward]]
name = "right"
evaluation = "reward"

[train]
lora_rank = 8

[deploy]
share = 0.25
gates = {{ eval = {allowed}, safety = {{ {safety} }} }}
"""
"""Versions 0, 1 and 2 solve 2, 3 and 1 of five tasks."""


@pytest.mark.parametrize(
    ("version", "allowed", "safety", "stage", "sentence"),
    [
        (
            1,
            0.9,
            '"failed calls" = 0, "output tokens of a call" = 0.5, "seconds of a call" = 60',
            "canary",
            "v1 of policy 'policy' is canary: on 5 held-out tasks it differs from ",
        ),
        (2, 0.1, "", "retired", "differs from v0 by -0.200, at least by -0."),
        (2, 1, "reward = 0.1, polite = 0", "retired", "; reward may be worse by 0."),
    ],
)
def test_a_candidate_is_examined_on_the_held_out_tasks(
    project: Any, version: int, allowed: float, safety: str, stage: str, sentence: str
) -> None:
    folder = project.home / "policies" / "policy"
    (project.folder / "ltrain.toml").write_text(RECIPE.format(allowed=allowed, safety=safety))
    trial = Deployment.begin(version, by="ltrain", stage=Stage.CANDIDATE)
    record_deployment(folder, trial)
    done = project.ltrain("deploy", "decide", "policy")
    assert done.returncode == 0, done.stderr
    assert sentence in done.stdout
    last = read_deployments(folder)[-1]
    assert (last.stage, last.share) == (stage, 0.25 * (stage == "canary"))
    assert "(run gate-policy)" in last.reason
    assert ("; no rollout has polite (run" in last.reason) == ("polite" in safety)
    assert project.policies.current("policy") == 0


def test_gates_that_cannot_be_run_admit_nobody(project: Any) -> None:
    folder = project.home / "policies" / "policy"
    (project.folder / "ltrain.toml").write_text(RECIPE.format(allowed=0.5, safety=""))
    (project.folder / "held-out.jsonl").write_text("{\n")
    record_deployment(folder, Deployment.begin(1, by="ltrain", stage=Stage.CANDIDATE))
    done = project.ltrain("deploy", "decide", "policy")
    assert "v1 of policy 'policy' is retired: its gates could not be run: " in done.stdout
    assert read_deployments(folder)[-1].stage == "retired"
