"""AutoGen: an assistant with tools, one that streams, and a swarm with a handoff."""

import asyncio
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import Swarm
from autogen_ext.models.openai import OpenAIChatCompletionClient

CLIENT = OpenAIChatCompletionClient(
    model="fake",
    model_info={
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "family": "unknown",
        "structured_output": False,
    },
)

HANDOFF = Handoff(
    target="forecaster",
    name="forward",
    message="It is yours. [[weather(city=Oslo); Sunny. Good day.]]",
)


async def weather(city: str) -> str:
    """Return the weather of a city."""
    await asyncio.sleep(0.3)
    return f"It is sunny in {city}."


async def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


def assistant(
    name: str, stream: bool = False, handoffs: list[Handoff] | None = None
) -> AssistantAgent:
    return AssistantAgent(
        name,
        CLIENT,
        tools=[weather, book],
        handoffs=handoffs,
        reflect_on_tool_use=True,
        model_client_stream=stream,
        system_message="You know places.",
    )


async def tools() -> None:
    prompt = "How is it? [[<Two cities.> weather(city=Paris) + weather(city=Rome); Sunny."
    guide = assistant("guide")
    prompt = f"{prompt}; !book(city=Bath) + nowhere(); No.]]"
    print((await guide.run(task=prompt)).messages[-1].to_text())
    print((await guide.run(task="And a room?")).messages[-1].to_text())


async def streamed() -> None:
    guide = assistant("streaming_guide", stream=True)
    events = [
        it async for it in guide.run_stream(task="Say it. [[weather(city=Rome); One by one.]]")
    ]
    print(events[-1].messages[-1].to_text())


async def swarm() -> None:
    team = Swarm(
        [assistant("desk", handoffs=[HANDOFF]), assistant("forecaster")],
        termination_condition=TextMentionTermination("Good day.", sources=["forecaster"]),
    )
    print((await team.run(task="Tomorrow? [[forward()]]")).messages[-1].to_text())


async def main() -> None:
    for name in sys.argv[1:]:
        await {"tools": tools, "streamed": streamed, "swarm": swarm}[name]()
    await CLIENT.close()


asyncio.run(main())
