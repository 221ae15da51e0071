"""A taskset of verifiers with a tool call in the conversation, its own harness and two seats.

The harness is a plain program in this environment, so that no index is needed when it runs.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

__all__ = ["PlainHarness", "SumsEnv", "SumsTaskset"]
PROGRAM = Path(__file__).with_name("program.py")


class PlainConfig(vf.HarnessConfig):
    id: str = "sums"


class PlainHarness(vf.Harness[PlainConfig]):
    """Sends the prompt, and the results of the tools that the answers name, until there is none."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def setup(self, runtime: vf.Runtime) -> None:
        return

    async def launch(
        self, ctx: vf.ModelContext, trace: vf.Trace, runtime: vf.Runtime, endpoint: str,
        secret: str, mcp_urls: dict[str, str], data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:  # fmt: skip
        command = [sys.executable, str(PROGRAM), endpoint, secret, ctx.model, data.prompt_text]
        return await runtime.run_program(command, {})


class SumData(vf.TaskData):
    gold: int


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.75)
    async def right(self, trace: Any) -> float:
        return float(str(self.data.gold) in trace.last_reply)

    @vf.reward(weight=0.25)
    async def used_tool(self, trace: Any) -> float:
        return float(trace.num_turns > 1)

    @vf.metric
    async def letters(self, trace: Any) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    sums: int = 8


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        for number in range(self.config.sums):
            plan = f"[[add(a={number},b=2); It is {number + 2 if number % 2 else 0}.]]"
            data = SumData(prompt=f"{number} + 2 = ? {plan}", gold=number + 2)
            yield SumTask(data, self.config.task)


class SumsEnvConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig()


class SumsEnv(vf.Env[SumsEnvConfig]):
    """The critic reads the task, too; it is not trained, and has no model of its own."""

    async def setup(self, agents: vf.Agents) -> None:
        agents.critic.trainable = False

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.solver.run(task)
        await agents.critic.run(task)
