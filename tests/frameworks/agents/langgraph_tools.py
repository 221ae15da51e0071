"""A manual graph of a model and its tools: parallel, returning errors, raising, streamed."""

import time
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    time.sleep(0.3)
    return f"It is sunny in {city}."


@tool
def search(query: str) -> str:
    """Search the web."""
    raise LookupError(f"nothing found for {query}")


@tool
def book(city: str) -> str:
    """Book a trip."""
    raise RuntimeError(f"no trips to {city}")


def excuse(error: LookupError) -> str:
    return f"Sorry: {error}"


tools = [weather, search, book]
llm = ChatOpenAI(model="fake").bind_tools(tools)


def think(state: MessagesState) -> Any:
    return {"messages": [llm.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("tools", ToolNode(tools, handle_tool_errors=excuse))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", tools_condition)
graph.add_edge("tools", "think")
traveller = graph.compile(name="traveller")


def user_message(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


plan = "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !search(query=hail); Sunny.]]"
print(traveller.invoke(user_message(f"How is it? {plan}"))["messages"][-1].content)

streamed: Any = traveller.stream(
    user_message("And there? [[<There.> weather(city=Oslo); Snow.]]"), stream_mode="messages"
)
print("".join(chunk.content for chunk, _ in streamed))

try:
    traveller.invoke(user_message("Book it. [[book(city=Rome); Never said.]]"))
except RuntimeError as error:
    print(error)
