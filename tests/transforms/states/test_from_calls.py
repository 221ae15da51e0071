from collections.abc import Callable
from typing import Any

import polars as pl

from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe

ReadBack = Callable[[Any], pl.DataFrame]


def test_a_variable_is_written_by_the_node_before_the_change_is_seen(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    question = {"question": "how many singers?"}
    rollout.llm("write", state=question)
    rollout.tool(state={**question, "query": "SELECT 1"})
    rollout.llm("rewrite", state={**question, "query": "SELECT 1", "error": "no such table"})
    tables = derive(read_back(scene), recipe).tables
    nodes = dict(
        tables["calls"].filter(pl.col("kind") == "node").select("name", "call_id").iter_rows()
    )
    calls = dict(
        tables["calls"].filter(pl.col("kind") != "node").select("seq", "call_id").iter_rows()
    )
    assert tables["states"].select("t", "variable", "value", "written_by").rows() == [
        (0, "question", '"how many singers?"', None),
        (2, "query", '"SELECT 1"', nodes["write"]),
        (3, "tool.execute_query.arguments", '{"query":"SELECT 1"}', None),
        (4, "tool.execute_query.result", '"rows"', calls[3]),
        (4, "error", '"no such table"', nodes["execute_query"]),
        (6, "answer", '"answer"', calls[5]),
    ]


def test_what_the_graph_gives_back_was_written_by_its_last_node(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    begin = rollout.clock
    rollout.llm("write", state={"question": "q"})
    attributes = {
        "openinference.span.kind": "CHAIN",
        "output.value": '{"question": "q", "query": "S"}',
    }
    rollout.emit(
        "LangGraph", "openinference.instrumentation.langchain", attributes, start=begin - 1
    )
    tables = derive(read_back(scene), recipe).tables
    (node,) = tables["calls"].filter(pl.col("name") == "write")["call_id"]
    written = tables["states"].filter(pl.col("variable") != "answer")
    assert written.select("variable", "written_by").rows() == [("question", None), ("query", node)]


def test_a_call_reads_what_occurs_in_its_input(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    rollout.llm("write", state={"asked": "question", "other": "nowhere", "n": 1})
    calls = derive(read_back(scene), recipe).tables["calls"]
    assert calls.filter(pl.col("kind") == "llm")["reads"].to_list() == [["asked"]]


def test_equal_states_have_equal_digests(scene: Any, read_back: ReadBack, recipe: Recipe) -> None:
    for sample, question in enumerate(("one", "one", "two")):
        rollout = scene.attempt("t1", sample)
        rollout.llm("write", state={"question": question})
        rollout.evaluate(float(sample))
        rollout.close()
    tables = derive(read_back(scene), recipe).tables
    where = tables["executions"].select("execution_id", "sample_index")
    digests = tables["transitions"].join(where, "execution_id").sort("sample_index")["state_digest"]
    assert digests[0] == digests[1] != digests[2]
