"""LangChain's agent: parallel tools, one that returns an error, a retry, a stream, a crash."""

import time
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    time.sleep(0.3)
    return f"It is sunny in {city}."


@tool
def search(query: str) -> str:
    """Search the web."""
    raise ToolException(f"nothing found for {query}")


@tool
def book(city: str) -> str:
    """Book a trip."""
    raise RuntimeError(f"no trips to {city}")


search.handle_tool_error = True

agent = create_agent(ChatOpenAI(model="fake"), [weather, search, book], name="traveller")


def user_message(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


plan = "[[<Two cities.> weather(city=Paris) + weather(city=Rome); !search(query=hail); Sunny.]]"
print(agent.invoke(user_message(f"How is it? {plan}"))["messages"][-1].content)

streamed: Any = agent.stream(
    user_message("And there? [[<There.> weather(city=Oslo); Snow.]]"), stream_mode="messages"
)
print("".join(chunk.content for chunk, _ in streamed))

try:
    agent.invoke(user_message("Book it. [[book(city=Rome); Never said.]]"))
except RuntimeError as error:
    print(error)
