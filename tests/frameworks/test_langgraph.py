"""LangGraph: a graph with a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness, exported
from tests.frameworks.told import told

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_a_model_and_its_tools(run: Run) -> None:
    ran = run("frameworks", "langgraph_tools")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "Sunny.\nIt is sunny in Oslo.Snow.\nno trips to Rome\n"
    assert told(ran) == [
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
    completeness.check("langgraph", "frameworks", ran)


def test_a_graph_with_a_state(run: Run) -> None:
    ran = run("frameworks", "langgraph_graph")
    assert (ran.code, ran.out, ran.err) == (0, "Sunny in Rome. Pasta. 2 days.\n", "")
    assert len(ran.asked) == 5
    assert sorted(told(ran)) == [
        "conclude ok stop 7+5: Sunny in Rome. Pasta. 2 days.",
        "day ok stop 7+5: Day 1.",
        "day ok stop 7+5: Day 2.",
        "taste ok stop 7+5: Pasta.",
        "weather ok stop 7+5: Sunny in Rome.",
    ]
    (execution,) = ran.executions.to_dicts()
    assert (execution["traces"], execution["complete"]) == (1, True)
    node = dict(ran.calls.select("call_id", "node").iter_rows())
    written = sorted(
        (state["variable"], state["value"], str(node.get(state["written_by"])))
        for state in ran.states.to_dicts()
        if state["variable"] != "number"  # what Send gave: nobody's, or of who ran last
    )
    assert written == [
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


def test_whole_exported_spans(run: Run) -> None:
    ran = run("frameworks", "seeded", "langgraph_line", LTRAIN_POLICY_URLS="")
    assert ran.err == ""
    exported.check("langgraph", ran.requests, ran.port)
