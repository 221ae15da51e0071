"""google-adk: an agent with tools, one that streams, and one that hands over to another."""

import asyncio
import sys

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

# litellm's MCP gateway wants mcp 2, google-adk beside it mcp 1
MODEL = LiteLlm("openai/fake", num_retries=2, _skip_mcp_handler=True)


async def weather(city: str) -> str:
    """Return the weather of a city."""
    await asyncio.sleep(0.3)
    return f"It is sunny in {city}."


async def search(query: str) -> dict[str, str]:
    """Search the web."""
    return {"status": "error", "error_message": f"nothing found for {query}"}


async def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


def agent(name: str, instruction: str = "You know places.", **options: object) -> LlmAgent:
    return LlmAgent(
        name=name,
        model=MODEL,
        description="It knows places.",
        instruction=instruction,
        tools=[weather, search, book],
        **options,
    )


async def ask(agent: LlmAgent, *questions: str, **config: object) -> None:
    """Ask in one session, and print the final answers."""
    runner = InMemoryRunner(agent=agent, app_name="places")
    session = await runner.session_service.create_session(app_name="places", user_id="user")
    for question in questions:
        message = types.Content(role="user", parts=[types.Part(text=question)])
        async for event in runner.run_async(
            user_id="user",
            session_id=session.id,
            new_message=message,
            run_config=RunConfig(**config),
        ):
            if event.is_final_response() and not event.partial and event.content:
                print("".join(part.text or "" for part in event.content.parts if not part.thought))
    await runner.close()


async def tools() -> None:
    prompt = "How is it? [[<Two cities.> weather(city=Paris) + weather(city=Rome)"
    prompt = f"{prompt}; !search(query=hail); Sunny.]]"
    await ask(agent("guide"), prompt, "And now? [[weather(city=Bath); Fine.]]")


async def raising() -> None:
    try:
        await ask(agent("guide"), "And a room? [[book(city=Bath)]]")
    except PermissionError as error:
        print(error)


async def streamed() -> None:
    prompt = "Say it. [[weather(city=Rome); One by one.]]"
    await ask(agent("streaming_guide"), prompt, streaming_mode=StreamingMode.SSE)


async def team() -> None:
    forecaster = agent("forecaster", "[[weather(city=Oslo); Sunny it is.]]")
    plan = "[[transfer_to_agent(agent_name=forecaster)]]"
    await ask(agent("desk", plan, sub_agents=[forecaster]), "Tomorrow?")


async def main() -> None:
    for name in sys.argv[1:]:
        await {"tools": tools, "raising": raising, "streamed": streamed, "team": team}[name]()


asyncio.run(main())
