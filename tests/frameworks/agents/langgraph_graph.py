"""A graph with a state: parallel branches, a sub-graph, a map by Send, a stream."""

import operator
from typing import Annotated, Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

llm = ChatOpenAI(model="fake")


class Trip(TypedDict, total=False):
    city: str
    weather: str
    food: str
    days: Annotated[list[str], operator.add]
    plan: str


class Day(TypedDict):
    number: int


def ask_model(text: str) -> str:
    return str(llm.invoke(f"Say it. [[{text}]]").content)


def weather(state: Trip) -> Trip:
    return {"weather": ask_model(f"Sunny in {state['city']}.")}


def taste(state: Trip) -> Any:
    return {"food": ask_model("Pasta.")}


def days(state: Trip) -> list[Send]:
    return [Send("day", {"number": number}) for number in (1, 2)]


def day(state: Day) -> Trip:
    return {"days": [ask_model(f"Day {state['number']}.")]}


def conclude(state: Trip) -> Trip:
    return {"plan": ask_model(f"{state['weather']} {state['food']} {len(state['days'])} days.")}


kitchen = StateGraph(Trip)
kitchen.add_node("taste", taste)
kitchen.add_edge(START, "taste")
kitchen.add_edge("taste", END)

graph = StateGraph(Trip)
graph.add_node("weather", weather)
graph.add_node("kitchen", kitchen.compile())
graph.add_node("day", day)
graph.add_node("conclude", conclude)
graph.add_edge(START, "weather")
graph.add_edge(START, "kitchen")
graph.add_conditional_edges("kitchen", days, ["day"])
graph.add_edge(["weather", "day"], "conclude")
graph.add_edge("conclude", END)
trip = graph.compile(name="trip")

print(trip.invoke({"city": "Rome"})["plan"])
