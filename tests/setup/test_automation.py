"""GitHub Actions, pre-commit, issue forms and .gitignore agree with the Makefile and the lock."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from setup import machine

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


def workflow(path: Path) -> dict[Any, Any]:
    return dict(yaml.safe_load(path.read_text()))


def steps() -> list[dict[str, Any]]:
    jobs = [job for path in WORKFLOWS for job in workflow(path)["jobs"].values()]
    return [step for job in jobs for step in job["steps"]]


def development_packages() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {re.split(r"[^\w-]", name)[0] for name in project["optional-dependencies"]["dev"]}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_reads_only_and_ends(path: Path) -> None:
    content = workflow(path)
    assert content["permissions"] == {"contents": "read"}
    assert set(content["concurrency"]) == {"group", "cancel-in-progress"}
    assert all(0 < job["timeout-minutes"] <= 120 for job in content["jobs"].values())


def privileged_jobs() -> dict[str, dict[str, Any]]:
    """Return the jobs with rights of their own, by the names of workflow and job."""
    return {
        f"{path.stem}.{name}": job
        for path in WORKFLOWS
        for name, job in workflow(path)["jobs"].items()
        if "permissions" in job
    }


def test_only_the_jobs_that_publish_a_release_hold_rights() -> None:
    assert {name: job["permissions"] for name, job in privileged_jobs().items()} == {
        "release.attach": {"attestations": "write", "contents": "write", "id-token": "write"},
        "release.pypi": {"id-token": "write"},
    }


def test_a_job_with_rights_follows_the_check_and_runs_nothing_of_the_repository() -> None:
    for job in privileged_jobs().values():
        assert job["needs"] == "check"
        assert [step for step in job["steps"] if "checkout" in step.get("uses", "")] == []
        assert all(step["run"].startswith("gh release ") for step in job["steps"] if "run" in step)


def test_pypi_trusts_one_environment_and_gets_attestations() -> None:
    job = privileged_jobs()["release.pypi"]
    assert (job["environment"], job["if"]) == ("pypi", "vars.PUBLISH_TO_PYPI == 'true'")
    upload = job["steps"][-1]
    assert upload["uses"] == "pypa/gh-action-pypi-publish@release/v1"
    assert upload["with"] == {"attestations": True}


def test_workflows_run_targets_and_scripts_that_exist() -> None:
    commands = [step["run"] for step in steps() if "run" in step]
    targets = {target for run in commands for target in re.findall(r"^make ([\w-]+)", run, re.M)}
    assert {"setup", "coverage", "site", "dist", "dist-check"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:.*## ", MAKEFILE, re.MULTILINE), f"no target {target}"
    assert ".ci/run" in commands and os.access(ROOT / ".ci" / "run", os.X_OK)


def test_workflows_run_every_supported_python() -> None:
    supported = ["{}.{}".format(*each) for each in (*machine.PYTHONS, *machine.AGENT_PYTHONS)]
    versions = [step["with"]["python-version"] for step in steps() if "setup-python" in str(step)]
    matrix = "${{ matrix.python }}"
    assert set(versions) == {*supported, matrix}
    release = workflow(ROOT / ".github/workflows/release.yml")["jobs"]
    assert release["check"]["strategy"]["matrix"]["python"] == supported


def test_actions_are_pinned_by_their_major_version() -> None:
    actions = {step["uses"] for step in steps() if "uses" in step}
    own = {action for action in actions if re.fullmatch(r"actions/[\w-]+@v\d+", action)}
    assert own and actions - own == {"pypa/gh-action-pypi-publish@release/v1"}


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hooks_run_the_tools_of_the_project(hook: dict[str, Any]) -> None:
    command, *_ = hook["entry"].split()
    folder, _, tool = command.rpartition("/")
    assert (hook["language"], folder) == ("system", ".venv/bin")
    assert tool in development_packages()


def test_the_mypy_hook_checks_what_make_lint_checks() -> None:
    variables = dict(re.findall(r"^(PACKAGES|TYPED) := (.+)$", MAKEFILE, re.MULTILINE))
    typed = variables["TYPED"].replace("$(PACKAGES)", variables["PACKAGES"])
    (entry,) = [hook["entry"] for hook in HOOKS if hook["id"] == "mypy"]
    assert entry == f".venv/bin/mypy {typed}"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_what_github_requires(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    for field in form["body"]:
        assert field["type"] in {"textarea", "input"}
        assert field["attributes"]["label"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))


def test_the_bug_form_asks_for_the_report_of_the_doctor() -> None:
    fields = {
        field["id"]: field for field in workflow(ROOT / ".github/ISSUE_TEMPLATE/bug.yml")["body"]
    }
    assert "ltrain doctor --json" in fields["doctor"]["attributes"]["label"]
    assert {"command", "expected", "actual", "version", "doctor"} == fields.keys()


GENERATED = (
    *(".venv", ".venv-vllm", ".venv-trl", ".venv-examples", ".venv-site", ".venv-frameworks"),
    *(".venv-openai2", ".venv-otel144", ".venv-clients", ".venv-pyclients", ".venv-platforms"),
    ".venv-gyms",
    ".venv-tinker",
    ".venv-skyrl",
    ".ltrain",
)


@pytest.mark.parametrize("name", GENERATED)
def test_links_to_generated_folders_are_ignored(name: str, tmp_path: Path) -> None:
    repository = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    (repository / name).symlink_to(tmp_path)
    command = ["git", "-C", str(repository), "status", "--porcelain"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "?? .gitignore\n"


def test_no_file_of_a_generated_folder_is_in_the_repository() -> None:
    command = ["git", "-C", str(ROOT), "ls-files", "--", *GENERATED]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""
