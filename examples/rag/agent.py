"""A question-answering agent in the OpenAI Agents SDK: search pages, then answer from them.

The agent does not import ltrain. To run it alone, against any OpenAI-compatible server whose model
calls tools:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument \\
        python agent.py "Who designed the Falcon Bridge?"
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Protocol

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from retrieval import open_index

INSTRUCTIONS = """\
First search with retrieve. Then answer with words of the pages, as <answer>words</answer>."""
PAGES = int(os.environ.get("RAG_TOP_K", "1"))
"""Pages that a search returns."""
MAX_TURNS = 4
"""Calls of the model: three searches and an answer at most."""

INDEX = open_index()  # here, so that a worker without pages does not start

Item = dict[str, Any]


class Endpoint(Protocol):
    """The address of the model."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def model(self) -> str: ...


@function_tool
def retrieve(context: RunContextWrapper[list[str]], query: str) -> str:
    """Search the pages.

    Args:
        query: name to search for
    """
    context.context.append(query)
    pages = INDEX.search(query, PAGES)
    return "\n".join(f"{page.title}: {page.text}" for page in pages) or "No page was found."


def _worked(number: int, question: str, query: str, pages: str, answer: str) -> list[Item]:
    call = {"call_id": f"worked_{number}", "name": "retrieve"}
    return [
        {"role": "user", "content": question},
        {"type": "function_call", **call, "arguments": json.dumps({"query": query})},
        {"type": "function_call_output", "call_id": call["call_id"], "output": pages},
        {"role": "assistant", "content": f"<answer>{answer}</answer>"},
    ]


_EXAMPLES = (
    _worked(
        1,
        "Who designed the Pebble Hotel?",
        "Pebble Hotel",
        "Pebble Hotel: The Pebble Hotel is a hotel in Zarnow. Lou Finch designed the Pebble Hotel, "
        "and it was opened in 1888.",
        "Lou Finch",
    ),
    _worked(
        2,
        "What is Zarnow known for?",
        "Zarnow",
        "Zarnow: Zarnow is a town on the river Ob. Zarnow is known for its bells.",
        "bells",
    ),
    _worked(
        3,
        "In which town was Abel Stroud born?",
        "Abel Stroud",
        "Abel Stroud: Abel Stroud was a mason and was born in Ixworth. Abel Stroud played the "
        "lute.",
        "Ixworth",
    ),
)
WORKED: list[Item] = [*chain.from_iterable(_EXAMPLES[: int(os.environ.get("RAG_WORKED", "3"))])]
"""Worked questions before the question: a model of 135M parameters calls no tool without them."""


@cache
def _client() -> AsyncOpenAI:
    # A client costs tens of milliseconds of TLS set-up; every rollout has a URL of its own.
    return AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none")


def _agent(llm: Endpoint) -> Agent[list[str]]:
    client = _client().with_options(base_url=llm.base_url, api_key=llm.api_key)
    return Agent(
        name="rag",
        instructions=INSTRUCTIONS,
        tools=[retrieve],
        model=OpenAIChatCompletionsModel(llm.model, client),
        model_settings=ModelSettings(temperature=0, max_tokens=48),
    )


async def solve(task: Mapping[str, Any], llm: Endpoint) -> dict[str, Any]:
    """Answer `task["input"]`; return the last output, the queries, and why there is no output."""
    question: Item = {"role": "user", "content": task["input"]}
    queries: list[str] = []
    try:
        history = [*WORKED, question]
        result = await Runner.run(_agent(llm), history, context=queries, max_turns=MAX_TURNS)
    except (MaxTurnsExceeded, ModelBehaviorError) as error:
        return {"output": "", "queries": queries, "error": str(error)}
    return {"output": result.final_output, "queries": queries, "error": None}


@dataclass(frozen=True, slots=True)
class EnvironmentEndpoint:
    """The endpoint that the OPENAI_* variables name."""

    base_url: str
    api_key: str
    model: str


def main(arguments: list[str]) -> None:
    """Answer the question on the command line, else the task in LTRAIN_TASK, and print JSON."""
    if not arguments and "LTRAIN_TASK" not in os.environ:
        sys.exit('usage: python agent.py "Who designed the Falcon Bridge?"')
    task = {"input": " ".join(arguments)} if arguments else json.loads(os.environ["LTRAIN_TASK"])
    endpoint = EnvironmentEndpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=os.environ.get("OPENAI_MODEL", "rag"),
    )
    print(json.dumps(asyncio.run(solve(task, endpoint))))


if __name__ == "__main__":
    main(sys.argv[1:])
