"""semantic-kernel: an agent with tools, one that streams, and one that another one calls."""

import asyncio
import sys
from typing import Annotated

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class Places:
    @kernel_function(name="weather")
    async def weather(self, city: Annotated[str, "The city"]) -> str:
        """Return the weather of a city."""
        await asyncio.sleep(0.3)
        return f"It is sunny in {city}."

    @kernel_function(name="book")
    def book(self, city: Annotated[str, "The city"]) -> str:
        """Book a room."""
        raise PermissionError(f"no room in {city}")


def agent(
    name: str, *plugins: object, instructions: str = "You know places."
) -> ChatCompletionAgent:
    return ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id="fake"),
        name=name,
        description="It knows places.",
        instructions=instructions,
        plugins=[Places(), *plugins],
    )


async def tools() -> None:
    calls = "<Two cities.> Places-weather(city=Paris) + Places-weather(city=Rome)"
    prompt = f"How is it? [[{calls}; !Places-book(city=Bath); Sunny.]]"
    print(await agent("guide").get_response(messages=prompt))


async def streamed() -> None:
    prompt = "Say it. [[Places-weather(city=Rome); One by one.]]"
    async for part in agent("streaming_guide").invoke_stream(messages=prompt):
        print(part, end="")
    print()


async def team() -> None:
    plan = "[[Places-weather(city=Oslo); Sunny.]]"
    desk = agent("desk", agent("forecaster", instructions=plan))
    plan = "[[forecaster-forecaster(messages=Oslo); Sunny it is.]]"
    print(await desk.get_response(messages=f"Tomorrow? {plan}"))


async def main() -> None:
    for name in sys.argv[1:]:
        await {"tools": tools, "streamed": streamed, "team": team}[name]()


asyncio.run(main())
