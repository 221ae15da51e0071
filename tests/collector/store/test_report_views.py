"""The report views over spans of real frameworks; the docs contain every view."""

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from tests.otlp import insert_otlp

from ltrain_collector import schema
from ltrain_collector.store.trace_store import Store
from ltrain_collector.transfer.importing import import_files

TESTS = Path(__file__).parents[2]
FIXTURES = (
    "langchain__gateway-with-bridge",
    "openai-agents__otel-genai-1.3b0",
    "langchain__traceloop-0.62.4",
    "reward__otel-and-openinference",
)
VIEWS = re.findall(
    r"CREATE OR REPLACE VIEW otel\.(\w+)",
    "".join(
        files("ltrain_collector").joinpath("ddl", f"{name}.sql").read_text()
        for name in ("05_spans", *schema.USER_VIEWS)
    ),
)


@pytest.fixture
def real(folder: Store) -> Store:
    """A store with the spans of four programs."""
    paths = [TESTS / "fixtures" / f"{name}.otlp.json" for name in FIXTURES]
    assert import_files(folder, paths, lambda path: None).unreadable == 0
    return folder


def test_every_view_can_be_queried(real: Store) -> None:
    assert len(VIEWS) == 11
    for view in VIEWS:
        assert real.query(f"SELECT * FROM otel.{view}").columns


def test_tool_calls(real: Store) -> None:
    rows = real.query(
        "SELECT tool, status, error FROM otel.tool_calls ORDER BY started, span"
    ).rows()
    assert len(rows) == 12
    assert [row for row in rows if row[1] == "error"] == [
        ("get_weather", "error", "ValueError"),
        ("get_weather", "error", "_OTHER"),
        (
            "get_weather",
            "error",
            "ValueError('city not found: Atlantis')Traceback (most recent call last):",
        ),
    ]


def test_tool_status(real: Store) -> None:
    rows = real.query("SELECT * EXCEPT mean_duration FROM otel.tool_status ORDER BY status").rows()
    assert rows == [("", "get_weather", "error", 3, 0.25), ("", "get_weather", "ok", 9, 0.75)]


def test_slow_tools(real: Store) -> None:
    (row,) = real.query("SELECT * EXCEPT total FROM otel.slow_tools").to_dicts()
    slowest = row.pop("slowest_span")
    assert row == {
        "run": "",
        "tool": "get_weather",
        "calls": 12,
        "errors": 3,
        "median": 0.0015232,
        "p95": 0.019155012,
        "slowest": 0.019155012,
    }
    called = real.query("SELECT tool FROM otel.tool_calls WHERE span = {s:String}", {"s": slowest})
    assert called["tool"].to_list() == ["get_weather"]


def test_token_use(real: Store, request_of: Callable[..., bytes]) -> None:
    used = "SELECT * EXCEPT (first_call, last_call) FROM otel.token_use"
    assert real.query(used).rows() == []  # files are not trusted with what a gateway saw
    answered = {"gen_ai__operation__name": "chat", "gen_ai__usage__output_tokens": "3"}
    insert_otlp(real, request_of((1, 1), (1, 2), scope="ltrain.gateway", **answered))
    assert real.query(used).rows() == [("", "", 0, "", 2, 0, 6, 3.0)]


def test_reward_by_task(real: Store) -> None:
    rows = real.query("SELECT * EXCEPT first_judged FROM otel.reward_by_task").rows()
    # a span has 0, an event of another span 1
    assert rows == [("", "", 0, "t1", "reward", "agent", 2, 0.5, 0.0, 1.0, 0.5)]


def test_every_view_and_column_of_it_is_in_the_docs(folder: Store) -> None:
    page = (TESTS.parent / "docs" / "store.md").read_text()
    assert [view for view in VIEWS if f"`otel.{view}`" not in page] == []
    for view in VIEWS[5:]:
        documented = page.split(f"| `otel.{view}` |")[1].split("\n")[0]
        columns = folder.query(f"SELECT * FROM otel.{view}").columns
        assert [name for name in columns if f"`{name}`" not in documented] == [], view
