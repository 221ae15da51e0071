"""strands-agents: an agent with tools that streams or not, and one that uses another as a tool."""

import asyncio
import sys

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
async def weather(city: str) -> str:
    """Return the weather of a city."""
    await asyncio.sleep(0.3)
    return f"It is sunny in {city}."


@tool
def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


def agent(name: str, *tools: object, prompt: str = "You know places.") -> Agent:
    return Agent(
        name=name,
        model=OpenAIModel(model_id="fake"),
        tools=[*tools],
        system_prompt=prompt,
        callback_handler=None,
    )


def tools() -> None:
    guide = agent("guide", weather, book)
    prompt = "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !book(city=Bath); Sunny.]]"
    print(str(guide(f"How is it? {prompt}")).strip())
    print(str(guide("And now? [[weather(city=Bath); Fine.]]")).strip())


def streamed() -> None:
    async def read() -> None:
        guide = agent("streaming_guide", weather, book)
        async for event in guide.stream_async("Say it. [[weather(city=Rome); One by one.]]"):
            print(event.get("data", ""), end="")
        print()

    asyncio.run(read())


def team() -> None:
    @tool
    def forecast(city: str) -> str:
        """Ask the forecaster."""
        return str(agent("forecaster", weather)(f"{city}? [[weather(city=Oslo); Sunny.]]")).strip()

    desk = agent("desk", forecast)
    print(str(desk("Tomorrow? [[forecast(city=Oslo); Sunny it is.]]")).strip())


for name in sys.argv[1:]:
    {"tools": tools, "streamed": streamed, "team": team}[name]()
