"""haystack: an agent with tools, one that streams, and a pipeline with an agent."""

import asyncio
import sys
import time

from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    time.sleep(0.3)
    return f"It is sunny in {city}."


@tool
def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


def agent(**options: object) -> Agent:
    return Agent(
        chat_generator=OpenAIChatGenerator(model="fake"),
        tools=[weather, book],
        system_prompt="You know places.",
        **options,
    )


def tools() -> None:
    prompt = "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !book(city=Bath); Sunny.]]"
    print(agent().run([ChatMessage.from_user(f"How is it? {prompt}")])["last_message"].text)


def streamed() -> None:
    parts: list[str] = []
    streaming = agent(streaming_callback=lambda chunk: parts.append(chunk.content))
    streaming.run([ChatMessage.from_user("Say it. [[weather(city=Rome); One by one.]]")])
    print("".join(parts))


async def awaited() -> None:
    message = ChatMessage.from_user("And Oslo? [[weather(city=Oslo); Snow.]]")
    print((await agent().run_async([message]))["last_message"].text)


def pipeline() -> None:
    template = [ChatMessage.from_user("Tomorrow in {{city}}? [[weather(city=Oslo); Fine.]]")]
    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder(template, required_variables=["city"]))
    pipeline.add_component("guide", agent())
    pipeline.connect("prompt.prompt", "guide.messages")
    result = pipeline.run({"prompt": {"city": "Oslo"}})
    print(result["guide"]["last_message"].text)


for name in sys.argv[1:]:
    if name == "awaited":
        asyncio.run(awaited())
    else:
        {"tools": tools, "streamed": streamed, "pipeline": pipeline}[name]()
