"""CrewAI: two agents and two tasks, tools in parallel, delegation, a stream, a flow; awaited."""

import asyncio
import sys
import time

from crewai import LLM, Agent, Crew, Task
from crewai.flow.flow import Flow, listen, start
from crewai.tools import tool

MODEL = LLM(model="fake")


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    time.sleep(0.3)
    return f"It is sunny in {city}."


@tool
def book(city: str) -> str:
    """Book a room."""
    raise PermissionError(f"no room in {city}")


guide = Agent(
    role="guide",
    goal="Know places.",
    backstory="You have been there.",
    tools=[weather, book],
    llm=MODEL,
    allow_delegation=True,
)
forecaster = Agent(
    role="forecaster",
    goal="Know the sky. [[weather(city=Oslo); Snow in Oslo.]]",
    backstory="You look up.",
    tools=[weather],
    llm=LLM(model="fake", stream=True),
)


def crew() -> None:
    plan = (
        "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !book(city=Bath);"
        "delegate_work_to_coworker(task=Oslo, context=Tomorrow, coworker=forecaster); Sunny.]]"
    )
    tour = Task(description=f"How is it? {plan}", expected_output="The weather.", agent=guide)
    report = Task(
        description="Report it. [[It is sunny everywhere.]]",
        expected_output="A sentence.",
        agent=forecaster,
    )
    print(Crew(agents=[guide, forecaster], tasks=[tour, report]).kickoff().raw)


class Trip(Flow):  # type: ignore[misc]
    @start()
    def choose(self) -> str:
        self.state["city"] = "Oslo"
        return "Oslo"

    @listen(choose)
    def look(self, city: str) -> str:
        return str(forecaster.kickoff(f"And {city}? [[weather(city=Oslo); Snow.]]").raw)


def flow() -> None:
    print(Trip().kickoff())


async def awaited() -> None:
    task = Task(
        description="How? [[weather(city=Paris) + weather(city=Rome); Still sunny.]]",
        expected_output="The weather.",
        agent=guide,
    )
    print((await Crew(agents=[guide], tasks=[task]).akickoff()).raw)
    print((await forecaster.kickoff_async("And Bath? [[weather(city=Bath); Rain.]]")).raw)


for name in sys.argv[1:]:
    if name == "awaited":
        asyncio.run(awaited())
    else:
        {"crew": crew, "flow": flow}[name]()
