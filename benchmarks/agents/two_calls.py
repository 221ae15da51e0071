"""A taskset of verifiers whose episodes make two calls, and its evaluation without ltrain.

`python two_calls.py URL EPISODES CONCURRENCY` evaluates it and prints the seconds of the episodes.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["TwoCalls", "TwoCallsHarness"]
NAME = "two_calls"
HARNESS = {"harness": {"id": NAME}, "runtime": {"type": "subprocess"}}
WARM = 8
"""Episodes before the measured ones."""


class TwoCallsConfig(vf.HarnessConfig):
    id: str = NAME


class TwoCallsHarness(vf.Harness[TwoCallsConfig]):
    """Sends the prompt and one more message, in the process of verifiers."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def setup(self, runtime: vf.Runtime) -> None:
        return

    async def launch(
        self, ctx: vf.ModelContext, trace: vf.Trace, runtime: vf.Runtime, endpoint: str,
        secret: str, mcp_urls: dict[str, str], data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:  # fmt: skip
        messages: list[Any] = []
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            for text in (data.prompt_text, "Go on."):
                messages.append({"role": "user", "content": text})
                answer = await client.chat.completions.create(
                    model=ctx.model, messages=messages, user="paced"
                )
                messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class TwoCallsTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def length(self, trace: Any) -> float:
        return float(len(trace.last_reply))


class TwoCallsSetConfig(vf.TasksetConfig):
    count: int = 1000


class TwoCalls(vf.Taskset[TwoCallsTask, TwoCallsSetConfig]):
    def load(self) -> Iterator[TwoCallsTask]:
        for number in range(self.config.count):
            yield TwoCallsTask(vf.TaskData(prompt=f"Question {number}"), self.config.task)


async def evaluate(url: str, episodes: int, concurrency: int) -> float:
    """Return the seconds of so many episodes, after a few others."""
    os.environ["TWO_CALLS_KEY"] = "none"
    env = vf.SingleAgentEnv(vf.SingleAgentEnvConfig(taskset={"id": NAME}, agent=HARNESS))
    client = vf.EvalClientConfig(base_url=f"{url}/v1", api_key_var="TWO_CALLS_KEY")
    context = vf.ModelContext(model="policy", client=client)
    places = asyncio.Semaphore(concurrency)

    async def play(task: Any) -> None:
        async with places:
            episode = await env.run_episode(task, context)
            assert episode.ok, episode.errors

    tasks = list(env.taskset.take(WARM + episodes))
    async with env.serving():
        await asyncio.gather(*map(play, tasks[:WARM]))
        began = time.perf_counter()
        await asyncio.gather(*map(play, tasks[WARM:]))
        return time.perf_counter() - began


if __name__ == "__main__":
    print(asyncio.run(evaluate(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
