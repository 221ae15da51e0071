"""A recipe's folder whose agent runs in a sandbox, for the tests of sandboxes."""

from pathlib import Path
from typing import Any

from ltrain_train.sandboxes import SandboxSettings
from ltrain_transforms.recipe import Rollout

REWARD = """
import json, os
from pathlib import Path

def score(task, result, workspace, diff):
    kept = {"result": result, "diff": diff, "files": sorted(os.listdir(workspace or "."))}
    Path(task["kept"]).write_text(json.dumps(kept))
    return 1.0
"""


def write_project(folder: Path, agent: str) -> Path:
    """Write an agent, its reward, its tasks and a workspace, and return their folder."""
    folder.mkdir()
    (folder / "agent.py").write_text(agent)
    (folder / "scored.py").write_text(REWARD)
    (folder / "tasks.jsonl").write_text('{"id": "a", "input": "?", "gold": "forty-two"}\n')
    (folder / "work").mkdir()
    (folder / "work" / "code.py").write_text("print(1)\n")
    return folder


def sandbox_of(folder: Path, agent: str = "python agent.py", **keys: Any) -> SandboxSettings:
    """Return the sandbox of the recipe's folder."""
    settings = {"sandbox": "bubblewrap", "workspace": "work", "reward": "scored:score", **keys}
    rollout = Rollout.model_validate({"tasks": "tasks.jsonl", "agent": agent, **settings})
    sandbox = SandboxSettings.from_section(rollout, folder)
    assert sandbox is not None
    return sandbox
