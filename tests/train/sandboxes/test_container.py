"""The command lines of docker and podman, as a stub in PATH records them."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.sandboxed import sandbox_of, write_project

from ltrain_train.rollout import Runner, Task
from ltrain_train.sandboxes import SandboxUnavailable, check_sandbox
from ltrain_train.workers import Outcome

STUB = """#!/bin/sh
python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" >>{calls}
case "$1" in
  run) for word; do [ "$previous" = --env-file ] && cp "$word" {calls}.env; previous=$word; done
    echo started >"{home}/$(ls {home} | grep outbox)"; echo '"done"' ;;
  image) [ "$3" = agent:1 ] || {{ echo "no such image" >&2; exit 1; }} ;;
esac
"""


@pytest.fixture(params=["docker", "podman"])
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a stub in PATH that records its arguments in `calls`."""
    stub = tmp_path / "bin" / request.param
    stub.parent.mkdir()
    stub.write_text(STUB.format(calls=tmp_path / "calls", home=tmp_path / "home"))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(stub.parent), prepend=":")
    return str(request.param)


def test_an_attempt_runs_in_a_container_without_network_and_rights(
    program: str, runner: Callable[..., Runner], tmp_path: Path, outside: Any
) -> None:
    folder = write_project(tmp_path / "project", "")
    sandbox = sandbox_of(folder, sandbox=program, image="agent:1")
    check_sandbox(sandbox, [{}])
    started = runner("python agent.py", folder=folder, sandbox=sandbox)
    (result,) = started.run("train", 0, [Task(id="a", input="?")], 1, sampling={})
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call[0] for call in calls] == ["version", "image", "run", "rm"]
    run = calls[2]
    options = dict(pairwise(run))
    assert options["--network"] == "none"
    assert options["--cap-drop"] == "ALL"
    assert options["--security-opt"] == "no-new-privileges"
    assert (options["--memory"], options["--pids-limit"]) == ("6144m", "264")
    assert "--read-only" in run
    assert ("keep-id" in run) is (program == "podman")
    assert calls[3] == ["rm", "--force", options["--name"]]
    mounts = [each for option, each in pairwise(run) if option == "--mount"]
    own = str(folder / "agent.py")
    assert f"type=bind,source={own},target={own},readonly" in mounts
    assert not any("tasks.jsonl" in each or "scored.py" in each for each in mounts)
    assert [each for each in mounts if "readonly" not in each] == [
        each for each in mounts if each.endswith("target=/run/ltrain/outbox")
    ]
    assert run[-1] == "python agent.py"
    environment = (tmp_path / "calls.env").read_text()
    assert f"OPENAI_BASE_URL={outside.url}/rollout/" in environment
    assert "\nPATH=" not in environment


def test_a_missing_image_is_found_before_the_run(program: str, tmp_path: Path) -> None:
    folder = write_project(tmp_path / "project", "")
    with pytest.raises(SandboxUnavailable, match=f"{program} pull other"):
        check_sandbox(sandbox_of(folder, sandbox=program, image="other"), [{}])
