"""The agents of three examples behind one function: the task's domain names the example.

The agent does not import ltrain. To run it alone, against any OpenAI-compatible server whose model
calls tools:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument \\
        python agent.py rag "Who designed the Falcon Bridge?"
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from siblings import DOMAINS, load

AGENTS = {domain: load(domain, "agent").solve for domain in DOMAINS}


class Endpoint(Protocol):
    """The address of the model."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def model(self) -> str: ...


async def solve(task: Mapping[str, Any], llm: Endpoint) -> dict[str, Any]:
    """Return what the agent of the task's domain returns."""
    agent = AGENTS[task["domain"]]
    if inspect.iscoroutinefunction(agent):
        answer: dict[str, Any] = await agent(task, llm)
    else:
        answer = await asyncio.to_thread(agent, task, llm)
    return answer


def main(arguments: list[str]) -> None:
    """Run the program of the domain's agent, with the further arguments or LTRAIN_TASK."""
    task = json.loads(os.environ.get("LTRAIN_TASK", "{}"))
    domain = arguments[0] if arguments else task.get("domain")
    if domain not in DOMAINS or not (arguments[1:] or task):
        sys.exit(f"usage: python agent.py {{{','.join(DOMAINS)}}} QUESTION")
    load(domain, "agent").main(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
