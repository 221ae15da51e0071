"""Work in children, threads and pools belongs to the rollout of the code that submits it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ltrain_instrument as ltrain
from ltrain_instrument.lifecycle import subprocesses

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink, Start

LAUNCHER_FOLDER = "/lib/opentelemetry/instrumentation/auto_instrumentation"
METHODS = [
    "fork, sys.exit",
    "fork, os._exit",
    "fork, exec",
    "fork",
    "forkserver",
    "spawn",
    "Pool",
    "Pool, terminated",
    "ProcessPoolExecutor",
    "subprocess",
    "subprocess, own environment",
    "asyncio subprocess",
    "asyncio shell",
    "uvloop subprocess",
    "thread",
    "ThreadPoolExecutor",
    "ThreadPool",
    "to_thread",
    "run_in_executor",
]
MCP = """
import dataclasses, os, subprocess

@dataclasses.dataclass
class Server:
    command: str
    args: list
    env: dict | None = None

    def model_copy(self, update):
        return dataclasses.replace(self, **update)

def stdio_client(server, errlog=None):
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    subprocess.run([server.command, *server.args], check=True, env=kept | (server.env or {}))
"""
"""A client that starts a server like the MCP SDK's, with only a few variables."""
SAME_PROCESS = {"thread", "ThreadPoolExecutor", "ThreadPool", "to_thread", "run_in_executor"}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("method", METHODS)
def test_submitted_work_stays_in_its_rollout(start: Start, sink: Sink, method: str) -> None:
    assert start("children", method, LTRAIN_RUN_ID="not-this").wait(120) == (0, "", "")
    (parent,), (child,) = sink.named("parent"), sink.named("handed")
    assert (child.trace, child.parent) == (parent.trace, parent.id)
    identity = {
        "ltrain.rollout.id": "r1",
        "ltrain.attempt.id": 2,
        "ltrain.task.id": "t",
        "ltrain.mode": "prod",
    }
    assert parent.attributes == child.attributes == identity
    instance = "service.instance.id"
    same = child.resource[instance] == parent.resource[instance]
    assert same is (method in SAME_PROCESS)
    expected = Counter(span.resource[instance] for span in (parent, child))
    reported = {
        span.resource[instance]: span.attributes["ltrain.rollout.spans"]
        for span in sink.named("ltrain.process")
    }
    assert reported == expected


def test_an_mcp_server_is_instrumented_like_its_client(
    start: Start, sink: Sink, tmp_path: Path
) -> None:
    package = tmp_path / "mcp" / "client"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "stdio.py").write_text(MCP)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert start("children", "mcp", PYTHONPATH=path).wait(120) == (0, "", "")
    (parent,), (child,) = sink.named("parent"), sink.named("handed")
    assert (child.trace, child.parent) == (parent.trace, parent.id)
    assert child.attributes == parent.attributes


def test_variables_that_the_agent_sets_for_a_child_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith(("LTRAIN_", "TRACE", "OTEL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    monkeypatch.setenv("LTRAIN_TASK_ID", "t1")
    monkeypatch.setenv("LTRAIN_GATEWAY_SECRET", "s3cret")
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    defaults = {"LTRAIN_HOME": str(tmp_path), "LTRAIN_SPAWNED": "1"}
    assert subprocesses.child_environment({"A": "b"}) == {
        "A": "b",
        "LTRAIN_TASK_ID": "t1",
        **defaults,
    }
    with ltrain.rollout(rollout="r1"):
        inside = subprocesses.child_environment({"LTRAIN_TASK_ID": "t1"})
        assert inside == {
            "LTRAIN_ROLLOUT_ID": "r1",
            "LTRAIN_ATTEMPT_ID": "0",
            "LTRAIN_MODE": "prod",
            "BAGGAGE": "ltrain.rollout.id=r1,ltrain.attempt.id=0,ltrain.mode=prod",
            **defaults,
        }
        assert subprocesses.child_environment(inside) == inside
        requested = {"LTRAIN_ROLLOUT_ID": "mine", "LTRAIN_HOME": "there", "TRACEPARENT": "x"}
        assert subprocesses.child_environment(requested) == {**requested, "LTRAIN_SPAWNED": "1"}
        assert "LTRAIN_GATEWAY_SECRET" not in subprocesses.child_environment(
            {"PYTHONPATH": LAUNCHER_FOLDER}
        )
        inherited = subprocesses.child_environment(None)
    assert inherited.items() >= (os.environ.items() - {("LTRAIN_TASK_ID", "t1")})
    assert "LTRAIN_TASK_ID" not in inherited
    assert os.environ["LTRAIN_TASK_ID"] == "t1"
