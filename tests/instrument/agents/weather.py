"""A LangGraph agent with one tool, in the mode of its argument."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from opentelemetry import trace

import ltrain

tracer = trace.get_tracer("worker")


def weather(city: str) -> str:
    """Return the weather of a city."""
    ltrain.reward(0.25, "tool", scope="call")
    return f"It is sunny in {city}."


def ask_model(city: str) -> str:
    """Ask a model about the weather of a city."""
    with tracer.start_as_current_span("by-hand"):
        message: Any = {"role": "user", "content": city}
        response = OpenAI().chat.completions.create(model="fake", messages=[message])
    return str(response.choices[0].message.content)


MODE = sys.argv[1]
AGENT = create_agent(
    ChatOpenAI(model="fake", streaming=MODE == "stream"), [ask_model if MODE == "raw" else weather]
)
QUESTION: Any = {"messages": [HumanMessage("How is the weather in Rome?")]}


def run_in_thread(k: int) -> None:
    with ltrain.rollout(rollout=f"r{k}"), tracer.start_as_current_span("ambient"):
        AGENT.invoke(QUESTION)


async def run_in_task(k: int) -> None:
    async with ltrain.rollout(rollout=f"r{k}"):
        with tracer.start_as_current_span("ambient"):
            await AGENT.ainvoke(QUESTION)


async def run_tasks() -> None:
    await asyncio.gather(*(run_in_task(k) for k in range(12)))


if MODE == "threads":
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(run_in_thread, range(12)))
elif MODE == "tasks":
    asyncio.run(run_tasks())
elif MODE == "ambient":
    with tracer.start_as_current_span("ambient"):
        AGENT.invoke(QUESTION)
else:
    AGENT.invoke(QUESTION)
