"""smolagents: an agent that calls tools, one that writes code, one that manages another."""

import sys
import time

from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

MODEL = OpenAIModel("fake")
TRIED: set[str] = set()


@tool
def weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: The city.
    """
    time.sleep(0.3)
    return f"It is sunny in {city}."


@tool
def book(city: str) -> str:
    """Book a room; the first time it fails, and is asked again.

    Args:
        city: The city.
    """
    if city not in TRIED:
        TRIED.add(city)
        raise PermissionError(f"no room in {city}")
    return f"A room in {city}."


def agent(name: str, **options: object) -> ToolCallingAgent:
    return ToolCallingAgent(
        [weather, book],
        MODEL,
        name=name,
        description="It knows places.",
        verbosity_level=LogLevel.OFF,
        **options,
    )


def tools() -> None:
    prompt = "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !book(city=Bath)"
    print(agent("guide").run(f"How is it? {prompt}; final_answer(answer=Sunny.)]]"))


def streamed() -> None:
    prompt = "Say it. [[weather(city=Rome); final_answer(answer=One by one.)]]"
    *_, last = agent("streaming_guide", stream_outputs=True).run(prompt, stream=True)
    print("\n" + last.output)


def managed() -> None:
    instructions = "[[weather(city=Oslo); final_answer(answer=Sunny.)]]"
    desk = agent("desk", managed_agents=[agent("forecaster", instructions=instructions)])
    print(desk.run("Tomorrow? [[forecaster(task=Oslo); final_answer(answer=Sunny it is.)]]"))


def code() -> None:
    coder = CodeAgent([weather], MODEL, name="coder", verbosity_level=LogLevel.OFF)
    print(coder.run("Bath? [[I ask. <code>final_answer(weather('Bath'))</code>]]"))


for name in sys.argv[1:]:
    {"tools": tools, "streamed": streamed, "managed": managed, "code": code}[name]()
