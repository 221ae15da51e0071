"""A folder with a policy of three versions, an agent and tasks; vLLM is a fake program."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ltrain_command
from tests.train.gateway.conftest import write_model

from ltrain_train.policy import Policies
from ltrain_train.processes import free_port

ROOT = Path(__file__).parents[3]
AGENTS = ROOT / "tests" / "train" / "rollout" / "agents"
FAKE_VLLM = ROOT / "tests" / "fake_vllm.py"
TASKS: list[dict[str, Any]] = [
    {"id": "first", "input": "weights", "gold": "w0"},
    {"id": "second", "input": "weights", "gold": "w1"},
    {"id": "second-too", "input": "weights", "gold": "w1"},
    {"id": "both", "input": "w7", "gold": "w7"},
    {"id": "crash", "input": "w7", "gold": "w7", "raises": True},
]
"""Version N of the policy answers `weights` with `wN`."""
WAITING_AGENT = """
import time
from pathlib import Path

import plain
from ltrain_train.processes import free_port

def solve(task, llm):
    while task.get("waits_for") and not Path(task["waits_for"]).exists():
        time.sleep(0.05)
    return {"answer": plain.ask(llm, task["input"])}
"""
WAIT = 180.0
"""Seconds for a command that takes fifteen on an idle machine."""


@dataclass(frozen=True)
class Project:
    """A folder in which `ltrain eval` is typed."""

    folder: Path
    environ: dict[str, str]

    @property
    def home(self) -> Path:
        return Path(self.environ["LTRAIN_HOME"])

    @property
    def policies(self) -> Policies:
        return Policies(self.home)

    def command(self, *arguments: object) -> list[str]:
        return [ltrain_command(), *map(str, arguments)]

    def ltrain(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )

    def write_tasks(self, tasks: Sequence[dict[str, Any]], name: str = "held-out.jsonl") -> None:
        (self.folder / name).write_text("".join(json.dumps(task) + "\n" for task in tasks))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    python = tmp_path / "python"
    fake = f'exec {sys.executable} {FAKE_VLLM} "$@"'
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ] && exit 0\n{fake}\n')
    python.chmod(0o755)
    otlp, store, gateway = free_port(), free_port(), free_port()
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")}
    environ = {
        **inherited,
        "COLUMNS": "120",
        "LTRAIN_HOME": str(tmp_path / "home"),
        "LTRAIN_VLLM_PYTHON": str(python),
        "LTRAIN_STORE": f"http://127.0.0.1:{store}",
        "LTRAIN_GATEWAY": f"http://127.0.0.1:{gateway}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp}",
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai",
        "PYTHONPATH": str(AGENTS),
    }
    made = Project(tmp_path / "project", environ)
    made.folder.mkdir()
    made.policies.register("policy", write_model(tmp_path / "model"))
    for number in (1, 2):
        draft = write_model(tmp_path / f"draft{number}", fill=number)
        made.policies.register_files("policy", draft, parent=0, dataset="d", recipe="r")
    made.write_tasks(TASKS)
    (made.folder / "waiting.py").write_text(WAITING_AGENT)
    return made
