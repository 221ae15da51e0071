"""dspy: an agent with tools, an awaited one, one that uses another as a tool, and two by dspy's own
HTTP client.
"""

import asyncio
import os
import sys
import time

import dspy

# an adapter without double brackets, which the test's model reads as plans
dspy.configure(
    lm=dspy.LM("openai/fake", cache=False, num_retries=2),
    adapter=dspy.XMLAdapter(use_native_function_calling=True),
)


def weather(city: str) -> str:
    """Return the weather of a city."""
    time.sleep(0.3)
    return f"It is sunny in {city}."


def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


def forecast(city: str) -> str:
    """Ask the forecaster."""
    plan = "[[weather(city=Oslo); submit(answer=Sunny.)]]"
    return str(
        dspy.ReActV2("question -> answer", tools=[weather])(question=f"{city}? {plan}").answer
    )


def tools() -> None:
    guide = dspy.ReActV2("question -> answer", tools=[weather, book])
    plan = "<Two cities.> weather(city=Paris) + weather(city=Rome); !book(city=Bath)"
    print(guide(question=f"How is it? [[{plan}; submit(answer=Sunny.)]]").answer)


async def awaited() -> None:
    guide = dspy.ReActV2("question -> answer", tools=[weather, book])
    plan = "[[weather(city=Rome); submit(answer=One by one.)]]"
    print((await guide.acall(question=f"And now? {plan}")).answer)


def team() -> None:
    desk = dspy.ReActV2("question -> answer", tools=[forecast])
    plan = "[[forecast(city=Oslo); submit(answer=Sunny it is.)]]"
    print(desk(question=f"Tomorrow? {plan}").answer)


def own_client() -> None:
    """Call the model by dspy's own HTTP client, which it takes if no variable has the address."""
    lm = dspy.LM("openai/fake", api_base=os.environ.pop("OPENAI_BASE_URL"), cache=False)
    with dspy.context(lm=lm):
        tools()
        asyncio.run(awaited())


for name in sys.argv[1:]:
    if name == "awaited":
        asyncio.run(awaited())
    else:
        {"tools": tools, "team": team, "own_client": own_client}[name]()
