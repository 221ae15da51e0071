"""MCP over stdio: arguments and results of tools, and a server in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_client(run: Run) -> None:
    result = run("frameworks", "mcp_client")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Sunny.\n", "")
    assert describe_calls(result) == [
        "None ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  None ok weather(city=Paris): It is sunny in Paris.",
        "  None ok weather(city=Rome): It is sunny in Rome.",
        "None ok tool_calls 7+5: search(query=hail)",
        "  None error search(query=hail): Error executing tool search: which hail?",
        "None ok tool_calls 7+5: book(city=Bath)",
        "  None error book(city=Bath): -32603",
        "None ok stop 7+5: Sunny.",
    ]
    completeness.check("mcp", "frameworks", result, {"agent": "MCP has no agents"})


def test_the_server_is_a_process_of_the_rollout(run: Run) -> None:
    result = run("frameworks", "mcp_client")
    in_server = pl.col("scope").eq("mcp-python-sdk") & pl.col("name").str.starts_with("tools/call")
    server_spans = result.spans.filter(in_server)
    client = result.spans.filter(pl.col("name").str.starts_with("MCP send tools/call"))
    assert server_spans["name"].sort().to_list() == [
        *("tools/call book", "tools/call search", "tools/call weather", "tools/call weather")
    ]
    assert server_spans["process"].unique().len() == 1
    assert not set(server_spans["process"]) & set(client["process"])
    assert set(client["span_id"]) == set(server_spans["parent_id"])
    assert len(result.calls_of_kind("tool")) == 4
    assert result.executions["complete"].to_list() == [True]
