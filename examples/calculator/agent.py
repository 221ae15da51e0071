"""An AutoGen agent that solves word problems with a calculator, which is an MCP server.

The agent does not import ltrain. To run it alone, against any OpenAI-compatible server with tools:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument \\
        python agent.py "A box has 24 pens. How many pens are in 36 boxes?"
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ToolCallExecutionEvent, ToolCallRequestEvent
from autogen_core import FunctionCall
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    ModelFamily,
    UserMessage,
)
from autogen_ext.models.openai import OpenAIChatCompletionClient
from calculator import Calculator
from openai import DefaultAsyncHttpxClient

PROMPT = "Solve the problem with the calculator. Then write ### ANSWER: <number> ###"
WORKED = (
    (
        "A bus has 44 seats. How many seats are in 13 buses and a van with 7 seats?",
        "44 * 13 + 7",
        "579",
    ),
    ("Ines has 915 beads and loses 208 of them. How many beads are left?", "915 - 208", "707"),
    ("A crate holds 24 bottles. How many bottles do 36 crates hold?", "24 * 36", "864"),
)
"""Question, expression and result of the worked examples in the context."""
MAX_CALLS = 3
"""Rounds of calculations before the agent ends without an answer."""


class Endpoint(Protocol):
    """The address of the model."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def model(self) -> str: ...


@cache
def calculator() -> Calculator:
    """Return the calculator of this process: starting a server takes a second."""
    return Calculator()


@cache
def _connection() -> DefaultAsyncHttpxClient:
    # A client costs tens of milliseconds of TLS set-up; every rollout has a URL of its own.
    return DefaultAsyncHttpxClient()


def _client(llm: Endpoint) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model=llm.model,
        base_url=llm.base_url,
        api_key=llm.api_key,
        http_client=_connection(),
        temperature=0,
        max_tokens=64,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "family": ModelFamily.UNKNOWN,
            "structured_output": False,
        },
    )


def worked_examples() -> list[LLMMessage]:
    """Return the turns of the worked examples."""
    turns: list[LLMMessage] = []
    for number, (question, expression, result) in enumerate(WORKED):
        call = f"call_{number}"
        arguments = json.dumps({"expression": expression})
        executed = FunctionExecutionResult(
            call_id=call, name="calculate", content=result, is_error=False
        )
        turns += [
            UserMessage(content=question, source="user"),
            AssistantMessage(
                content=[FunctionCall(id=call, name="calculate", arguments=arguments)],
                source="solver",
            ),
            FunctionExecutionResultMessage(content=[executed]),
            AssistantMessage(content=f"### ANSWER: {result} ###", source="solver"),
        ]
    return turns


def extract_answer(text: str) -> str | None:
    """Return what the text has between `### ANSWER:` and `###`; None without it."""
    found = re.search(r"###\s*ANSWER:\s*(.+?)\s*(?:###|$)", text, re.IGNORECASE)
    return found[1] if found else None


async def solve(task: Mapping[str, Any], llm: Endpoint) -> dict[str, Any]:
    """Solve `task["input"]`; return the answer, the expressions, and how many of them failed."""
    agent = AssistantAgent(
        "solver",
        _client(llm),
        workbench=calculator(),
        model_context=UnboundedChatCompletionContext(worked_examples()),
        system_message=PROMPT,
        max_tool_iterations=MAX_CALLS,
    )
    messages = (await agent.run(task=task["input"])).messages
    calls = [call for m in messages if isinstance(m, ToolCallRequestEvent) for call in m.content]
    results = [r for m in messages if isinstance(m, ToolCallExecutionEvent) for r in m.content]
    return {
        "answer": extract_answer(messages[-1].to_text()),
        "expressions": [call.arguments for call in calls],
        "failed": sum(bool(result.is_error) for result in results),
    }


@dataclass(frozen=True, slots=True)
class EnvironmentEndpoint:
    """The endpoint that the OPENAI_* variables name."""

    base_url: str
    api_key: str
    model: str


async def _answer(task: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    try:
        return await solve(task, endpoint)
    finally:
        await calculator().stop()


def main(arguments: list[str]) -> None:
    """Solve the problem on the command line, else the task in LTRAIN_TASK, and print JSON."""
    if not arguments and "LTRAIN_TASK" not in os.environ:
        sys.exit('usage: python agent.py "A box has 24 pens. How many pens are in 36 boxes?"')
    task = {"input": " ".join(arguments)} if arguments else json.loads(os.environ["LTRAIN_TASK"])
    endpoint = EnvironmentEndpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=os.environ.get("OPENAI_MODEL", "calculator"),
    )
    print(json.dumps(asyncio.run(_answer(task, endpoint))))


if __name__ == "__main__":
    main(sys.argv[1:])
