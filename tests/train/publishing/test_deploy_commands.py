"""`ltrain deploy` and `ltrain policy freeze` without a gateway: what they print and refuse."""

import json
import re
from pathlib import Path

import pytest
from tests.train.publishing.test_retention import home as home  # a fixture

from ltrain_train.policy import Deployments, Policies
from ltrain_train.publishing import deploy_commands, policy_commands
from ltrain_train.publishing.retention import superfluous_versions
from ltrain_transforms.deployment_file import Stage, read_deployments
from ltrain_transforms.errors import BadDeployment, BadPolicyFile

NO_STORE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(home))
    monkeypatch.setenv("LTRAIN_GATEWAY", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("COLUMNS", "120")


def test_a_candidate_is_started_and_promoted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy_commands.start_candidate("sql@8", 0.25, "")
    assert capsys.readouterr().out == (
        "Version 8 of policy 'sql' answers 0.25 of the conversations that begin from now on. No "
        "gateway serves the policy now. Serve it with `ltrain serve --policy sql`.\n"
    )
    deploy_commands.print_status("sql", NO_STORE, as_json=False)
    out = capsys.readouterr().out
    assert re.search(r"current +v7 *\n", out)
    assert re.search(r"on trial +v8 is a canary for 0\.25 of the conversations, since 20", out)
    assert re.search(r"not compared +the store cannot be read: .*127\.0\.0\.1:9", out)
    header, row = out.splitlines()[-2:]
    assert header.split() == ["time", "(UTC)", "version", "stage", "share", "by", "reason"]
    assert row.split()[2:] == ["v8", "canary", "0.25", "ada"]
    deploy_commands.promote_candidate("sql", "better")
    assert "Version 8 of policy 'sql' is current, previously 7." in capsys.readouterr().out
    assert Policies(home).current("sql") == 8
    deploy_commands.print_status(None, NO_STORE, as_json=True)
    described = json.loads(capsys.readouterr().out)["sql"]
    assert described["metrics"] is None and "127.0.0.1:9" in described["fault"]
    assert [(each["stage"], each["reason"]) for each in described["stages"]] == [
        ("canary", ""),
        ("current", "better"),
    ]


def test_a_candidate_leaves_the_shadow(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deploy_commands.start_candidate("sql@8", 0.25, "", shadow=True)
    assert "answers 0.25 of the conversations that begin from now on, too, and nobody sees its" in (
        capsys.readouterr().out
    )
    deploy_commands.print_status("sql", NO_STORE, as_json=False)
    assert re.search(r"v8 is in the shadow of 0\.25 of the conv", capsys.readouterr().out)
    deploy_commands.start_candidate("sql@8", 0.1, "")
    shadow, canary = read_deployments(home / "policies" / "sql")
    assert (canary.stage, canary.share) == (Stage.CANARY, 0.1)
    assert canary.experiment != shadow.experiment and canary.began > shadow.began
    with pytest.raises(BadDeployment, match="Version 8 is canary and cannot become shadow"):
        deploy_commands.start_candidate("sql@8", 0.25, "", shadow=True)


def test_a_candidate_is_stopped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deploy_commands.start_candidate("sql@8", 0.1, "")
    deploy_commands.stop_candidate("sql", "slow")
    assert "Version 8 of policy 'sql' is retired. Version 7 answers" in capsys.readouterr().out
    with pytest.raises(BadDeployment, match=r"has no candidate\. Start one with `ltrain deploy st"):
        deploy_commands.promote_candidate("sql", "")
    deploy_commands.print_status("sql", NO_STORE, as_json=False)
    assert re.search(r"on trial +no version *\n", capsys.readouterr().out)


def test_a_version_that_becomes_current_ends_the_trial(home: Path) -> None:
    deploy_commands.start_candidate("sql@8", 0.1, "")
    policy_commands.use_version("sql@6")
    *_, last = read_deployments(home / "policies" / "sql")
    assert (last.version, last.stage, last.reason) == (8, "retired", "version 6 became current")


def test_a_frozen_policy_keeps_its_version(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deploy_commands.start_candidate("sql@8", 0.1, "")
    deploy_commands.freeze("sql", "an incident")
    assert "version 7 answers all calls until `ltrain policy unfreeze sql`" in (
        capsys.readouterr().out
    )
    assert read_deployments(home / "policies" / "sql")[-1].stage is Stage.RETIRED
    sentence = r"Policy 'sql' is frozen by ada since .* UTC: an incident\."
    with pytest.raises(BadDeployment, match=sentence):
        deploy_commands.start_candidate("sql@8", 0.1, "")
    with pytest.raises(BadDeployment, match=sentence):
        policy_commands.use_version("sql@6")
    policy_commands.use_version("sql@7")  # it is current already
    deploy_commands.print_status("sql", NO_STORE, as_json=False)
    assert re.search(r"frozen +by ada since .* UTC: an incident", capsys.readouterr().out)
    deploy_commands.unfreeze("sql")
    deploy_commands.unfreeze("sql")
    assert capsys.readouterr().out == (
        "Policy 'sql' can change again.\nPolicy 'sql' was not frozen.\n"
    )
    policy_commands.use_version("sql@6")


def test_a_candidate_is_not_pruned(home: Path) -> None:
    policies = Policies(home)
    removed = superfluous_versions(policies, "sql", home / "runs", keep=1)
    assert 5 in removed
    deploy_commands.start_candidate("sql@5", 0.1, "")
    assert 5 not in superfluous_versions(policies, "sql", home / "runs", keep=1)


def test_damaged_files_are_named(home: Path) -> None:
    folder = home / "policies" / "sql"
    (folder / "frozen.json").write_text("{")
    with pytest.raises(BadPolicyFile, match=r"frozen\.json is damaged .*Remove it"):
        deploy_commands.start_candidate("sql@8", 0.1, "")
    (folder / "frozen.json").unlink()
    deploy_commands.start_candidate("sql@8", 0.1, "")
    with (folder / "deployments.jsonl").open("a") as file:
        file.write('{"at": 1}\n')
    with pytest.raises(BadPolicyFile, match=r"Line 2 of .*deployments\.jsonl is damaged"):
        Deployments(Policies(home), "sql").candidate()
