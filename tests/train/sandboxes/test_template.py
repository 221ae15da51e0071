"""A sandbox that a command line of the user's starts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sandboxed import sandbox_of, write_project

from ltrain_train.rollout import Runner, Task
from ltrain_train.sandboxes import SandboxUnavailable, check_sandbox
from ltrain_train.workers import Outcome

REMOTE = """
import json, os, subprocess, sys
command, environment, workspace, memory = sys.argv[1:]
variables = json.load(open(environment))
done = subprocess.run(
    ["/bin/sh", "-c", command], env={**variables, "PATH": os.environ["PATH"]}, cwd=workspace
)
sys.exit(done.returncode)
"""
COMMAND = 'echo new >new; ln -s /etc/passwd out; echo \\"$OPENAI_MODEL\\"'


def test_the_command_line_runs_the_attempt_and_its_workspace_comes_back(
    runner: Callable[..., Runner], tmp_path: Path
) -> None:
    folder = write_project(tmp_path / "project", "")
    (folder / "remote.py").write_text(REMOTE)
    line = f"python {folder}/remote.py {{command}} {{environment}} {{workspace}} {{memory_mib}}"
    sandbox = sandbox_of(folder, COMMAND, sandbox="command", sandbox_command=line)
    check_sandbox(sandbox, [{}])
    started = runner(COMMAND, folder=folder, sandbox=sandbox, reward="scored:score")
    task = Task.model_validate({"id": "a", "input": "?", "kept": str(tmp_path / "kept.json")})
    (result,) = started.run("train", 0, [task], 1, sampling={})
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["result"] == "sql"
    assert kept["files"] == ["code.py", "new"]
    assert kept["diff"].startswith("# not kept: workspace/out: a link to '/etc/passwd'\n")


@pytest.mark.parametrize(
    ("line", "problem"), [("true", r"has no \{command\}"), ("nowhere {command}", "not in PATH")]
)
def test_a_bad_command_line_is_found_before_the_run(
    tmp_path: Path, line: str, problem: str
) -> None:
    folder = write_project(tmp_path / "project", "")
    with pytest.raises(SandboxUnavailable, match=problem):
        check_sandbox(sandbox_of(folder, sandbox="command", sandbox_command=line), [{}])
