"""Three agents in LangGraph answer questions from SQLite databases: write, check and rewrite.

They do not import ltrain. To run them alone, against any OpenAI-compatible server:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument \\
        python agent.py flights "How many airlines are from Peru?"
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any, Literal, Protocol, TypedDict

from database import HERE, QueryFailed, Rows, open_database
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import SecretStr
from spider import load_schemas

MAX_TURNS = 2
"""Queries of a run: the first one, and one more if it fails or is rejected."""
MAX_ROWS = 500
"""Rows that the tool returns."""
MAX_TEXT = 80
"""Characters of rows or of SQLite's error message that the model sees."""


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
    database: str
    schema: str
    conversation: list[str]
    """The texts of user and model, in turns, after the worked examples."""
    sql: str
    rows: Rows
    turns: int
    """Queries that were executed."""
    feedback: str | None
    """Why the query must be rewritten; None: it is approved, or not yet checked."""
    answer: str | None


@dataclass(frozen=True, slots=True)
class Model:
    """The context of a run of the graph."""

    chat: ChatOpenAI


WORKED = (
    (
        "What are the names of the {t1}s with the {b1} {bv1}?",
        "SELECT {a1} FROM {t1} WHERE {b1} = {bq1};",
    ),
    ("What is the {c0} of the {t0} named {av0}?", "SELECT {c0} FROM {t0} WHERE {a0} = {aq0};"),
    ("How many {t0}s have the {b0} {bv0}?", "SELECT count(*) FROM {t0} WHERE {b0} = {bq0};"),
    ("How many {t1}s have a {c1} above {cv1}?", "SELECT count(*) FROM {t1} WHERE {c1} > {cq1};"),
)
"""Worked questions: `t0` is the first table, `a0`, `b0` and `c0` are its first, second and last
column, `av0` is a value of the first column, and `aq0` the same in SQL."""


@cache
def worked_examples(database: str, schema: str) -> tuple[BaseMessage, ...]:
    """Return the schema, and worked questions about the first rows of its first two tables."""
    tables = re.findall(r"(.+)\((.+)\)", schema)
    names: dict[str, object] = {}
    for number in (0, 1):
        table, columns = tables[min(number, len(tables) - 1)]
        names |= _names(database, table, columns.split(", "), number)
    turns = [
        message
        for question, query in WORKED[: int(os.environ.get("SQL_WORKED", len(WORKED)))]
        for message in (
            HumanMessage(question.format(**names)),
            AIMessage(query.format(**names)),
        )
    ]
    return SystemMessage(f"Write one SQLite query.\n{schema}"), *turns


def _names(database: str, table: str, columns: list[str], number: int) -> dict[str, object]:
    """Return what the names of `WORKED` with a number stand for."""
    first = open_database(database).rows(f'SELECT * FROM "{table}"', 1)
    row = first[0] if first else ["x"] * len(columns)
    chosen = {"a": 0, "b": min(1, len(columns) - 1), "c": len(columns) - 1}
    names: dict[str, object] = {f"t{number}": table}
    for name, place in chosen.items():
        value = row[place]
        literal = "'{}'".format(value.replace("'", "''")) if isinstance(value, str) else value
        names |= {f"{name}{number}": columns[place], f"{name}v{number}": value}
        names[f"{name}q{number}"] = "NULL" if literal is None else literal
    return names


@tool
def execute_sql(database: str, sql: str) -> Rows:
    """Run one SELECT statement on a database."""
    return open_database(database).rows(sql, MAX_ROWS)


def write_query(state: State, runtime: Runtime[Model]) -> State:
    """Ask the model for a query."""
    return _write(state, runtime, state["question"])


def execute_query(state: State) -> State:
    """Run the query with the tool."""
    turns = state.get("turns", 0) + 1
    try:
        rows = execute_sql.invoke({"database": state["database"], "sql": state["sql"]})
        return {"rows": rows, "turns": turns, "feedback": None}
    except QueryFailed as failure:
        return {"rows": [], "turns": turns, "feedback": f"Error: {failure}"[:MAX_TEXT]}


def check_query(state: State, runtime: Runtime[Model]) -> State:
    """Ask the model whether the query and its rows answer the question."""
    prompt = HumanMessage(
        f"Question: {state['question']}\nQuery: {state['sql']}\nRows: {_shown(state)}\n"
        "Is the query correct or incorrect?"
    )
    verdict = runtime.context.chat.invoke([prompt], max_completion_tokens=4).text
    return {"feedback": "The query is incorrect" if "incorrect" in verdict.lower() else None}


def rewrite_query(state: State, runtime: Runtime[Model]) -> State:
    """Ask the model for another query if there is feedback, otherwise for the final answer."""
    if state["feedback"] is not None:
        return _write(state, runtime, f"{state['feedback']}. {state['question']}")
    prompt = _prompt(state, f"Rows: {_shown(state)}\nAnswer in words: {state['question']}")
    answer = runtime.context.chat.invoke(prompt, max_completion_tokens=24, stop=["\n"])
    return {"answer": str(answer.text)}


def _write(state: State, runtime: Runtime[Model], text: str) -> State:
    reply = str(runtime.context.chat.invoke(_prompt(state, text)).text)
    return {
        "conversation": [*state.get("conversation", []), text, reply],
        "sql": extract_sql(reply),
    }


def _prompt(state: State, text: str) -> list[BaseMessage]:
    """Return the conversation as messages, with a further text of the user."""
    texts = [*state.get("conversation", []), text]
    roles = cycle((HumanMessage, AIMessage))
    turns = [role(each) for role, each in zip(roles, texts, strict=False)]
    return [*worked_examples(state["database"], state["schema"]), *turns]


def _shown(state: State) -> str:
    return json.dumps(state["rows"])[:MAX_TEXT]


def extract_sql(text: str) -> str:
    """Return the query in an answer: inside its code fence if it has one, up to the first ';'."""
    fenced = re.search(r"```(?:sql|sqlite)?\s*(.*?)(?:```|$)", text, re.DOTALL | re.IGNORECASE)
    return (fenced[1] if fenced else text).strip().split(";")[0].strip()


def _after_execution(state: State) -> Literal["check_query", "rewrite_query", "__end__"]:
    last = state["turns"] == MAX_TURNS
    if state["feedback"] is not None:
        return "__end__" if last else "rewrite_query"
    return "rewrite_query" if last else "check_query"


def _after_rewrite(state: State) -> Literal["execute_query", "__end__"]:
    return "execute_query" if state.get("answer") is None else "__end__"


@cache
def graph() -> CompiledStateGraph[State, Model, State, State]:
    """Compile the graph, once per process."""
    builder = StateGraph(State, context_schema=Model)
    builder.add_node("write_query", write_query)
    builder.add_node("execute_query", execute_query)
    builder.add_node("check_query", check_query)
    builder.add_node("rewrite_query", rewrite_query)
    builder.add_edge(START, "write_query")
    builder.add_edge("write_query", "execute_query")
    builder.add_conditional_edges("execute_query", _after_execution)
    builder.add_edge("check_query", "rewrite_query")
    builder.add_conditional_edges("rewrite_query", _after_rewrite)
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
    """Answer `task["input"]`; return the last query, its rows or error, and the answer."""
    start: State = {
        "question": task["input"],
        "database": task["database"],
        "schema": task["schema"],
    }
    final = graph().invoke(start, context=Model(_chat(llm)))
    return {
        "sql": final["sql"],
        "rows": final["rows"],
        "error": final["feedback"],
        "answer": final.get("answer"),
    }


@dataclass(frozen=True, slots=True)
class EnvironmentEndpoint:
    """The endpoint that the OPENAI_* variables name."""

    base_url: str
    api_key: str
    model: str


def main(arguments: list[str]) -> None:
    """Answer the question on the command line, else the task in LTRAIN_TASK, and print JSON."""
    if len(arguments) != 2 and "LTRAIN_TASK" not in os.environ:
        sys.exit('usage: python agent.py flights "How many airlines are from Peru?"')
    task = _task(*arguments) if arguments else json.loads(os.environ["LTRAIN_TASK"])
    endpoint = EnvironmentEndpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=os.environ.get("OPENAI_MODEL", "sql"),
    )
    print(json.dumps(solve(task, endpoint)))


def _task(db_id: str, question: str) -> dict[str, str]:
    schemas = load_schemas(HERE / "data")
    if db_id not in schemas:
        sys.exit(f"There is no database '{db_id}'. Choose from: {', '.join(schemas)}.")
    database = f"data/database/{db_id}/{db_id}.sqlite"
    return {"input": question, "database": database, "schema": schemas[db_id]}


if __name__ == "__main__":
    main(sys.argv[1:])
