"""MCP over stdio: what tools were asked and said, and a server that is a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from tests.frameworks import completeness
from tests.frameworks.told import told

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_client(run: Run) -> None:
    ran = run("frameworks", "mcp_client")
    assert (ran.code, ran.out, ran.err) == (0, "Sunny.\n", "")
    assert told(ran) == [
        "None ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  None ok weather(city=Paris): It is sunny in Paris.",
        "  None ok weather(city=Rome): It is sunny in Rome.",
        "None ok tool_calls 7+5: search(query=hail)",
        "  None error search(query=hail): Error executing tool search: which hail?",
        "None ok tool_calls 7+5: book(city=Bath)",
        "  None error book(city=Bath): -32603",
        "None ok stop 7+5: Sunny.",
    ]
    completeness.check("mcp", "frameworks", ran, {"agent": "MCP knows no agents"})


def test_the_server_is_a_process_of_the_rollout(run: Run) -> None:
    ran = run("frameworks", "mcp_client")
    in_server = pl.col("scope").eq("mcp-python-sdk") & pl.col("name").str.starts_with("tools/call")
    served = ran.spans.filter(in_server)
    client = ran.spans.filter(pl.col("name").str.starts_with("MCP send tools/call"))
    assert served["name"].sort().to_list() == [
        *("tools/call book", "tools/call search", "tools/call weather", "tools/call weather")
    ]
    assert served["process"].unique().len() == 1
    assert not set(served["process"]) & set(client["process"])
    assert set(client["span_id"]) == set(served["parent_id"])
    assert len(ran.of("tool")) == 4
    assert ran.executions["complete"].to_list() == [True]
