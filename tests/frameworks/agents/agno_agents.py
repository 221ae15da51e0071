"""agno: an agent with tools, an awaited one that streams, and a team."""

import asyncio
import sys

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.team import Team


async def weather(city: str) -> str:
    """Return the weather of a city."""
    await asyncio.sleep(0.3)
    return f"It is sunny in {city}."


def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


def model() -> OpenAILike:
    return OpenAILike(id="fake", retries=2)


def agent(name: str, *tools: object, instructions: str = "You know places.") -> Agent:
    return Agent(
        name=name,
        model=model(),
        tools=list(tools),
        instructions=instructions,
        telemetry=False,
    )


async def tools() -> None:
    prompt = "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !book(city=Bath); Sunny.]]"
    print((await agent("guide", weather, book).arun(f"How is it? {prompt}")).content)


def at_once() -> None:
    print(agent("direct_guide", book).run("And now? [[book(city=Bath); No.]]").content)


async def streamed() -> None:
    prompt = "Say it. [[weather(city=Rome); One by one.]]"
    async for event in agent("streaming_guide", weather).arun(prompt, stream=True):
        print(event.content or "", end="")
    print()


async def team() -> None:
    plan = "[[delegate_task_to_member(member_id=forecaster, task=Oslo); Sunny it is.]]"
    forecaster = agent("forecaster", weather, instructions="[[weather(city=Oslo); Sunny.]]")
    desk = Team(name="desk", members=[forecaster], model=model(), telemetry=False)
    print((await desk.arun(f"Tomorrow? {plan}")).content)


async def main() -> None:
    for name in sys.argv[1:]:
        if name == "at_once":
            at_once()
        else:
            await {"tools": tools, "streamed": streamed, "team": team}[name]()


asyncio.run(main())
