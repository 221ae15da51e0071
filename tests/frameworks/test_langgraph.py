"""LangGraph: a graph with a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness, exported
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_a_model_and_its_tools(run: Run) -> None:
    result = run("frameworks", "langgraph_tools")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Sunny.\nIt is sunny in Oslo.Snow.\nno trips to Rome\n"
    assert describe_calls(result) == [
        "think ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  tools ok weather(city=Paris): It is sunny in Paris.",
        "  tools ok weather(city=Rome): It is sunny in Rome.",
        "think ok tool_calls 7+5: search(query=hail)",
        "  tools error search(query=hail): LookupError",
        "think ok stop 7+5: Sunny.",
        "think ok tool_calls 7+5: <There.> + weather(city=Oslo)",
        "  tools ok weather(city=Oslo): It is sunny in Oslo.",
        "think ok stop 7+5: Snow.",
        "think ok tool_calls 7+5: book(city=Rome)",
        "  tools error book(city=Rome): RuntimeError",
    ]
    completeness.check("langgraph", "frameworks", result)


def test_a_graph_with_a_state(run: Run) -> None:
    result = run("frameworks", "langgraph_graph")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "Sunny in Rome. Pasta. 2 days.\n",
        "",
    )
    assert len(result.model_requests) == 5
    assert sorted(describe_calls(result)) == [
        "conclude ok stop 7+5: Sunny in Rome. Pasta. 2 days.",
        "day ok stop 7+5: Day 1.",
        "day ok stop 7+5: Day 2.",
        "taste ok stop 7+5: Pasta.",
        "weather ok stop 7+5: Sunny in Rome.",
    ]
    (execution,) = result.executions.to_dicts()
    assert (execution["traces"], execution["complete"]) == (1, True)
    node_of_call = dict(result.calls.select("call_id", "node").iter_rows())
    states = sorted(
        (state["variable"], state["value"], str(node_of_call.get(state["written_by"])))
        for state in result.states.to_dicts()
        if state["variable"] != "number"  # Send's argument has no stable writer
    )
    assert states == [
        ("answer", '"Sunny in Rome. Pasta. 2 days."', "conclude"),
        ("city", '"Rome"', "None"),
        ("days", '["Day 1.","Day 2."]', "day"),
        ("days", "[]", "None"),
        ("food", '"Pasta."', "kitchen"),
        ("kitchen.city", '"Rome"', "None"),
        ("kitchen.days", "[]", "None"),
        ("kitchen.food", '"Pasta."', "taste"),
        ("plan", '"Sunny in Rome. Pasta. 2 days."', "conclude"),
        ("weather", '"Sunny in Rome."', "weather"),
    ]


def test_complete_exported_spans(run: Run) -> None:
    result = run("frameworks", "seeded", "langgraph_line", LTRAIN_POLICY_URLS="")
    assert result.stderr == ""
    exported.check_exported_spans("langgraph", result.otlp_requests, result.port)
