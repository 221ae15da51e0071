"""The tasks, the agent and the reward of an ltrain recipe, as an environment of verifiers 0.4.

`recipe.json` has the [rollout] of the recipe, `tasks.jsonl` its tasks, `agent/` its modules. The
agent is a process of this machine (runtime `subprocess`) with this Python, which needs its
packages.
"""

import asyncio
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

__all__ = ["RecipeHarness", "RecipeTaskset"]

HERE = Path(__file__).parent
RECIPE = json.loads((HERE / "recipe.json").read_text())
RESULT = "result.json"
sys.path.insert(0, str(HERE / "agent"))


class RecipeData(vf.TaskData):
    fields: dict[str, Any]
    """The task as the recipe's file has it."""


class RecipeTask(vf.Task[RecipeData]):
    """One task of the recipe; its scores are those of the recipe's reward function."""

    @vf.metric
    async def further_scores(self, runtime: Any) -> dict[str, float]:
        values = await self._score(runtime)
        return {name: value for name, value in values.items() if name != "reward"}

    @vf.reward
    async def reward(self, runtime: Any) -> float:
        values = await self._score(runtime)
        return values["reward"]

    async def _score(self, runtime: Any) -> dict[str, float]:
        result = json.loads(await runtime.read(RESULT))
        module, _, name = RECIPE["reward"].partition(":")
        function = getattr(importlib.import_module(module), name)
        if inspect.iscoroutinefunction(function):
            value = await function(self.data.fields, result)
        else:
            value = await asyncio.to_thread(function, self.data.fields, result)
        values = value if isinstance(value, Mapping) else {"reward": value}
        return {name: float(number) for name, number in values.items()}


class RecipeTaskset(vf.Taskset[RecipeTask]):
    def load(self) -> Iterator[RecipeTask]:
        for line in (HERE / "tasks.jsonl").read_text().splitlines():
            fields = json.loads(line)
            prompt = fields["input"]
            text = prompt if isinstance(prompt, str) else json.dumps(prompt)
            data = RecipeData(id=str(fields["id"]), prompt=text, fields=fields)
            yield RecipeTask(data, self.config.task)


class RecipeHarness(vf.Harness[vf.HarnessConfig]):
    """Runs the recipe's agent on a task, and keeps its result for the reward."""

    NEEDS_CONTAINER = False

    async def setup(self, runtime: Any) -> None:
        return

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str,
        mcp_urls: dict[str, str], data: Any, tool_interception_url: str | None = None,
    ) -> Any:  # fmt: skip
        seen = ("id", "domain", *RECIPE["agent_sees"])
        task = {key: data.fields[key] for key in seen if key in data.fields}
        program = [sys.executable, str(HERE / "run_agent.py"), RECIPE["agent"], RESULT]
        environ = {
            "LTRAIN_TASK": json.dumps(task),
            "OPENAI_BASE_URL": endpoint,
            "OPENAI_API_KEY": secret,
            "OPENAI_MODEL": ctx.model,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        return await runtime.run_program(program, environ)
