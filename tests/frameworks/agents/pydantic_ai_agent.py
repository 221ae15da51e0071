"""pydantic-ai: an agent with tools that work, ask for a retry and raise; streams; a sub-agent."""

import sys
import time

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.models.openai import OpenAIChatModel

MODEL = OpenAIChatModel("fake")


class Forecast(BaseModel):
    city: str
    sky: str


forecaster = Agent(MODEL, name="forecaster", output_type=Forecast)
agent = Agent(MODEL, name="guide", instructions="You know places.", retries=1)


@agent.tool_plain
def weather(city: str) -> str:
    """Return the weather of a city."""
    time.sleep(0.3)
    return f"It is sunny in {city}."


@agent.tool_plain
def search(query: str) -> str:
    """Search for places."""
    if query == "places":
        raise ModelRetry("Say which place.")
    return f"{query} is a town."


@agent.tool_plain
def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


@agent.tool
async def forecast(ctx: RunContext[None], city: str) -> str:
    """Ask the forecaster."""
    prompt = f"And in {city}? [[final_result(city={city}, sky=blue)]]"
    result = await forecaster.run(prompt, usage=ctx.usage)
    return result.output.sky


def tools() -> None:
    prompt = "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !search(query=places)"
    print(agent.run_sync(f"How is it? {prompt}; search(query=Bath); Sunny.]]").output)


def sub_agent() -> None:
    print(agent.run_sync("Tomorrow? [[forecast(city=Oslo); It is blue.]]").output)


def hard() -> None:
    try:
        agent.run_sync("A room? [[book(city=Bath); Never said.]]")
    except PermissionError as error:
        print(error)


def streamed() -> None:
    prompt = "Say it. [[weather(city=Rome); One by one.]]"
    result = agent.run_stream_sync(prompt)
    print("".join(result.stream_text(delta=True, debounce_by=None)))


for name in sys.argv[1:]:
    {"tools": tools, "sub_agent": sub_agent, "hard": hard, "streamed": streamed}[name]()
