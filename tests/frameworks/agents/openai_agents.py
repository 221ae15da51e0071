"""The OpenAI Agents SDK: parallel tools, a failing one, a handoff, a guardrail, a stream."""

import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    RunContextWrapper,
    Runner,
    UserError,
    function_tool,
    input_guardrail,
)


@function_tool
async def weather(city: str) -> str:
    """Return the weather of a city."""
    await asyncio.sleep(0.3)
    return f"It is sunny in {city}."


@function_tool
def search(query: str) -> str:
    """Search the web."""
    raise LookupError(f"nothing found for {query}")


@function_tool(failure_error_function=None)
def book(city: str) -> str:
    """Book a trip."""
    raise RuntimeError(f"no trips to {city}")


@input_guardrail
async def polite(
    context: RunContextWrapper[None], agent: Agent, user_input: object
) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, tripwire_triggered="!!" in str(user_input))


clerk = Agent(name="clerk", instructions="You book.", model="fake", tools=[book])
traveller = Agent(
    name="traveller",
    instructions="You travel.",
    model="fake",
    tools=[weather, search],
    handoffs=[clerk],
    input_guardrails=[polite],
)
PLAN = "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !search(query=hail); Sunny.]]"


async def main() -> None:
    print((await Runner.run(traveller, f"How is it? {PLAN}")).final_output)

    streamed = Runner.run_streamed(traveller, "And there? [[weather(city=Oslo); Snow.]]")
    kinds = [event.type async for event in streamed.stream_events()]
    print(streamed.final_output, "raw_response_event" in kinds)

    handoff = await Runner.run(traveller, "Can you? [[transfer_to_clerk(); I can.]]")
    print(handoff.final_output, handoff.last_agent.name)

    try:
        await Runner.run(clerk, "Book it. [[book(city=Rome); Never said.]]")
    except (RuntimeError, UserError) as error:
        print(error)

    try:
        await Runner.run(traveller, "Do it!! [[Never said.]]")
    except InputGuardrailTripwireTriggered:
        print("not so loud")


asyncio.run(main())
