"""MCP over stdio: what tools were asked and said, and a server that is a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from tests.frameworks import completeness

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_client_and_server(run: Run) -> None:
    ran = run("frameworks", "mcp_client")
    assert (ran.code, ran.out, ran.err) == (0, "Sunny.\n", "")
    assert [
        (tool["name"], tool["arguments"], tool["result"], tool["status"], tool["error_type"])
        for tool in ran.of("tool")
    ] == [
        ("weather", '{"city": "Paris"}', "It is sunny in Paris.", "ok", None),
        ("weather", '{"city": "Rome"}', "It is sunny in Rome.", "ok", None),
        (
            "search",
            '{"query": "hail"}',
            "Error executing tool search: which hail?",
            "error",
            "tool_error",
        ),
        ("book", '{"city": "Bath"}', None, "error", "-32603"),
    ]
    completeness.check(
        "mcp",
        "frameworks",
        ran,
        {
            "trace": "bare clients: nothing says where a run begins",
            "agent": "bare clients: nothing names an agent",
        },
    )


def test_the_server_is_a_process_of_the_rollout(run: Run) -> None:
    pytest.importorskip("ltrain_instrument.handover")
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
