"""A graph of two nodes, one after the other; the second calls a tool."""

from typing import TypedDict

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

llm = ChatOpenAI(model="fake")


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"It is sunny in {city}."


class Question(TypedDict, total=False):
    question: str
    city: str
    answer: str


def read(state: Question) -> Question:
    return {"city": str(llm.invoke(state["question"]).content)}


def look(state: Question) -> Question:
    return {"answer": str(weather.invoke({"city": state["city"]}))}


graph = StateGraph(Question)
graph.add_node("read", read)
graph.add_node("look", look)
graph.add_edge(START, "read")
graph.add_edge("read", "look")
graph.add_edge("look", END)
print(graph.compile().invoke({"question": "Where? [[Rome]]"})["answer"])
