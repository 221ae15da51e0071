"""Run an agent on the task in LTRAIN_TASK: `python run_agent.py AGENT RESULT_FILE`.

AGENT is `module:function` of the folder `agent` beside this file, or a command, which runs in that
folder; the last line that a command prints is its result.
"""

import asyncio
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

AGENT = Path(__file__).parent / "agent"


def run(agent: str) -> Any:
    """Return the result of the agent."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", agent.strip()):
        done = subprocess.run(
            agent, shell=True, cwd=AGENT, stdout=subprocess.PIPE, text=True, check=True
        )
        last = (done.stdout.strip().splitlines() or [""])[-1]
        try:
            return json.loads(last)
        except ValueError:
            return last
    sys.path.insert(0, str(AGENT))
    module, _, name = agent.strip().partition(":")
    solve = getattr(importlib.import_module(module), name)
    llm = SimpleNamespace(
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        model=os.environ["OPENAI_MODEL"],
        services={},
    )
    result = solve(json.loads(os.environ["LTRAIN_TASK"]), llm)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(sys.argv[1])))
