"""A text-to-SQL agent in LangGraph: write a query, run it, and rewrite it once if it fails.

The agent does not import ltrain. To run it alone, against any OpenAI-compatible server:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument \\
        python agent.py "How many singers are from France?"
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypedDict

from database import SCHEMA, Database, QueryFailed, Rows
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import SecretStr

PROMPT: tuple[BaseMessage, ...] = (
    SystemMessage("Write one SQLite query.\n" + SCHEMA),
    HumanMessage("How many stadiums are there?"),
    AIMessage("SELECT count(*) FROM stadium;"),
    HumanMessage("How many stadiums are in Lima?"),
    AIMessage("SELECT count(*) FROM stadium WHERE city = 'Lima';"),
)
MAX_ERROR = 80
"""Characters of SQLite's error message that the model sees."""

_DATABASE = Database()


class Endpoint(Protocol):
    """The address of the model."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key(self) -> str: ...
    @property
    def model(self) -> str: ...


class State(TypedDict, total=False):
    question: str
    messages: list[BaseMessage]
    sql: str
    rows: Rows | None
    error: str | None
    rewritten: bool


@dataclass(frozen=True, slots=True)
class Model:
    """The context of a run of the graph."""

    chat: ChatOpenAI


@tool
def execute_sql(sql: str) -> Rows:
    """Run one SELECT statement on the database."""
    return _DATABASE.rows(sql)


def write_query(state: State, runtime: Runtime[Model]) -> State:
    """Ask the model for a query."""
    return _ask(runtime.context.chat, [*PROMPT, HumanMessage(state["question"])])


def execute_query(state: State) -> State:
    """Run the query with the tool; the next node fixes a query that fails."""
    try:
        return {"rows": execute_sql.invoke({"sql": state["sql"]}), "error": None}
    except QueryFailed as failure:
        return {"rows": None, "error": str(failure)}


def rewrite_query(state: State, runtime: Runtime[Model]) -> State:
    """Send the error and the question to the model again."""
    retry = f"Error: {(state['error'] or '')[:MAX_ERROR]}. {state['question']}"
    answered = _ask(runtime.context.chat, [*state["messages"], HumanMessage(retry)])
    return {**answered, "rewritten": True}


def _ask(chat: ChatOpenAI, messages: list[BaseMessage]) -> State:
    answer = chat.invoke(messages)
    return {"messages": [*messages, answer], "sql": extract_sql(answer.text)}


def extract_sql(text: str) -> str:
    """Return the query in an answer: inside its code fence if it has one, up to the first ';'."""
    fenced = re.search(r"```(?:sql|sqlite)?\s*(.*?)(?:```|$)", text, re.DOTALL | re.IGNORECASE)
    return (fenced[1] if fenced else text).strip().split(";")[0].strip()


def _after_execution(state: State) -> Literal["rewrite_query", "__end__"]:
    failed = state["error"] is not None
    return "rewrite_query" if failed and not state.get("rewritten") else "__end__"


@cache
def graph() -> CompiledStateGraph[State, Model, State, State]:
    """Compile the agent, once per process."""
    builder = StateGraph(State, context_schema=Model)
    builder.add_node("write_query", write_query)
    builder.add_node("execute_query", execute_query)
    builder.add_node("rewrite_query", rewrite_query)
    builder.add_edge(START, "write_query")
    builder.add_edge("write_query", "execute_query")
    builder.add_conditional_edges("execute_query", _after_execution)
    builder.add_edge("rewrite_query", "execute_query")
    return builder.compile()


@cache
def _connections() -> tuple[DefaultHttpxClient, DefaultAsyncHttpxClient]:
    # A client costs tens of milliseconds of TLS set-up; every rollout has a URL of its own.
    return DefaultHttpxClient(), DefaultAsyncHttpxClient()


def _chat(llm: Endpoint) -> ChatOpenAI:
    connection, async_connection = _connections()
    return ChatOpenAI(
        model=llm.model,
        base_url=llm.base_url,
        api_key=SecretStr(llm.api_key),
        temperature=0,
        max_completion_tokens=48,
        max_retries=2,
        http_client=connection,
        http_async_client=async_connection,
    )


def solve(task: Mapping[str, Any], llm: Endpoint) -> dict[str, Any]:
    """Answer `task["input"]`; return the last query, its rows or error, and whether it ran."""
    final = graph().invoke({"question": task["input"]}, context=Model(_chat(llm)))
    error = final["error"]
    return {"sql": final["sql"], "rows": final["rows"], "error": error, "executed": error is None}


@dataclass(frozen=True, slots=True)
class EnvironmentEndpoint:
    """The endpoint that the OPENAI_* variables name."""

    base_url: str
    api_key: str
    model: str


def main(arguments: list[str]) -> None:
    """Answer the question on the command line, else the task in LTRAIN_TASK, and print JSON."""
    if not arguments and "LTRAIN_TASK" not in os.environ:
        sys.exit('usage: python agent.py "How many singers are from France?"')
    task = {"input": " ".join(arguments)} if arguments else json.loads(os.environ["LTRAIN_TASK"])
    endpoint = EnvironmentEndpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=os.environ.get("OPENAI_MODEL", "sql"),
    )
    print(json.dumps(solve(task, endpoint)))


if __name__ == "__main__":
    main(sys.argv[1:])
