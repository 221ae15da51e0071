"""The paper's figure 2 from real spans: UserInput, Query, Passages, Answer, one by one."""

import json
from collections.abc import Callable
from typing import Any

import polars as pl

from ltrain_transforms.calls import calls
from ltrain_transforms.states.from_calls import states
from ltrain_transforms.states.snapshots import digest, snapshot

ReadBack = Callable[[Any], pl.DataFrame]

QUESTION = "Who directed the film that won the first Palme d'Or?"
QUERY = "first Palme d'Or winning film"
PASSAGES: list[dict[str, Any]] = [
    {"content": "Marty (1955) won the first Palme d'Or.", "score": 0.9},
    {"content": "Marty was directed by Delbert Mann.", "score": 0.8},
]
ANSWER = "Delbert Mann"
OPENAI = "opentelemetry.instrumentation.genai.openai"


def text(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def chat(
    rollout: Any, prompt_messages: list[dict[str, Any]], answer_message: dict[str, Any]
) -> str:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "policy",
        "gen_ai.input.messages": json.dumps(prompt_messages),
        "gen_ai.output.messages": json.dumps([answer_message]),
    }
    return str(rollout.emit("chat policy", OPENAI, attributes))


def state(frame: pl.DataFrame, t: int) -> dict[str, Any]:
    rows = snapshot(frame, t).select("variable", "value").iter_rows()
    return {variable: json.loads(value) for variable, value in rows}


def test_a_pipeline_that_retrieves_with_the_models_own_words(
    scene: Any, read_back: ReadBack
) -> None:
    rollout = scene.attempt()
    ask = [text("system", "Write a search query."), text("user", QUESTION)]
    first = chat(rollout, ask, text("assistant", QUERY))
    retrieval = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.retrieval.query.text": QUERY,
        "gen_ai.retrieval.documents": json.dumps(PASSAGES),
    }
    search = rollout.emit("search", "retriever", retrieval)
    shown = "\n".join(passage["content"] for passage in PASSAGES)
    last = chat(
        rollout,
        [text("system", "Answer."), text("user", f"{shown}\n\nQuestion: {QUESTION}")],
        text("assistant", ANSWER),
    )
    call_rows, _ = calls(read_back(scene))
    written, observations, _ = states(call_rows)
    assert written.select("t", "variable", "value", "written_by").rows() == [
        (0, "input", json.dumps(QUESTION), None),
        (1, "retrieval.search.query", json.dumps(QUERY), first),
        (
            2,
            "retrieval.search.documents",
            json.dumps(PASSAGES, separators=(",", ":")),
            search,
        ),
        (3, "answer", json.dumps(ANSWER), last),
    ]
    assert observations.select("call_id", "reads", "action").rows() == [
        (first, ["input"], "answer"),
        (search, ["retrieval.search.query"], None),
        (last, ["input", "retrieval.search.documents"], "answer"),
    ]
    # the figure's left panel: which variables have a value before each call, and at the end
    names = ["input", "retrieval.search.query", "retrieval.search.documents", "answer"]
    values: list[Any] = [QUESTION, QUERY, PASSAGES, ANSWER]
    for t in range(4):
        assert state(written, t) == dict(zip(names[: t + 1], values, strict=False))


def test_an_agent_that_calls_search_as_a_tool(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    arguments = {"query": QUERY}
    prompt_messages = {
        "type": "tool_call",
        "id": "call_1",
        "name": "search",
        "arguments": arguments,
    }
    history = [text("user", QUESTION), {"role": "assistant", "parts": [prompt_messages]}]
    first = chat(rollout, history[:1], history[1])
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.tool.call.arguments": json.dumps(arguments),
        "gen_ai.tool.call.result": json.dumps(PASSAGES),
    }
    search = rollout.emit("execute_tool search", OPENAI, tool)
    response = {"type": "tool_call_response", "id": "call_1", "response": json.dumps(PASSAGES)}
    history.append({"role": "tool", "parts": [response]})
    last = chat(rollout, history, text("assistant", ANSWER))
    call_rows, _ = calls(read_back(scene))
    written, observations, _ = states(call_rows)
    assert written.select("t", "variable", "value", "written_by").rows() == [
        (0, "input", json.dumps(QUESTION), None),
        (1, "tool.search.arguments", '{"query":"first Palme d\'Or winning film"}', first),
        (2, "tool.search.result", json.dumps(PASSAGES, separators=(",", ":")), search),
        (3, "answer", json.dumps(ANSWER), last),
    ]
    assert observations.select("call_id", "reads", "action").rows() == [
        (first, ["input"], "tool_request"),
        (search, ["tool.search.arguments"], None),
        (last, ["input", "tool.search.arguments", "tool.search.result"], "answer"),
    ]
    # an anchor that knows only the question is the same at every call, one of the passages is not
    asked_only = digest(written, call_rows, ["input"])["state_digest"]
    assert asked_only.n_unique() == 1
    digests = digest(written, call_rows, ["tool.search.result"])["state_digest"].to_list()
    assert digests[:2] == [None, None] and digests[2] is not None
