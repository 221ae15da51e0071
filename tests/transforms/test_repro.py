"""Small OTLP files that were once read wrongly; `tests/repro/README.md` describes them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import emptied, open_empty_store

from ltrain_collector.store import Store
from ltrain_collector.transfer.importing import import_files
from ltrain_transforms.datasets.pipeline import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import Selection, read_spans

REPRO = Path(__file__).parent.parent / "repro"
MESSAGE = [{"role": "user", "parts": [{"type": "text", "content": "weather?"}]}]
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "sunny"}]}]

UNKNOWN = (
    "it looks like a call, and no dialect reads {} of the scope 'acme.tracing' 2.1: "
    "declare how with [[source.dialect]] in the recipe (docs/dialects.md)"
)

Tables = dict[str, pl.DataFrame]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_empty_store(tmp_path_factory.mktemp("store") / "store") as opened:
        yield opened


@pytest.fixture
def read(opened: Store) -> Callable[[str, Path], Tables]:
    """Import a file as `ltrain import` does; one store a module, emptied each time."""

    def through(name: str, file: Path) -> Tables:
        import_files(emptied(opened), [file], lambda progress: None)
        recipe = Recipe.load(REPRO / f"{name}.toml")
        spans, drops = read_spans(opened, recipe.source, Selection())
        assert drops.is_empty()
        return derive(spans, recipe).tables

    return through


def _rows(table: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    ordered = [name for name in ("execution_id", "seq", "t") if name in table.columns]
    return table.sort(ordered, maintain_order=True).select(columns).rows()


def _states(tables: Tables, prefix: str = "") -> list[tuple[str, Any]]:
    rows = _rows(tables["states"], "variable", "value")
    return [(name, json.loads(value)) for name, value in rows if name.startswith(prefix)]


def two_sessions(tables: Tables) -> None:
    assert tables["executions"]["execution_id"].sort().to_list() == ["L0", "L1"]
    assert _rows(tables["calls"], "execution_id", "call_id") == [
        ("L0", "3" * 16),
        ("L1", "4" * 16),
    ]
    assert _rows(tables["executions"].sort("execution_id"), "session_id", "llm_calls") == [
        ("L0", 1),
        ("L1", 1),
    ]


def order(tables: Tables) -> None:
    assert tables["executions"]["execution_id"].sort().to_list() == ["L0", "L1"]
    assert _rows(tables["calls"], "execution_id", "call_id") == [("L0", "3" * 16)]


def llm_span_around_two_calls(tables: Tables) -> None:
    calls = tables["calls"]
    assert _rows(calls, "call_id", "kind", "name", "parent_id", "requested_by", "status") == [
        ("1" * 16, "agent", "guide", None, None, "ok"),
        ("2" * 16, "llm", "m", "1" * 16, None, "ok"),
        ("3" * 16, "tool", "weather", "1" * 16, "2" * 16, "error"),
        ("4" * 16, "llm", "m", "1" * 16, None, "ok"),
    ]


def not_specified_id(tables: Tables) -> None:
    calls = tables["calls"].filter(pl.col("kind") == "tool")
    columns = ("name", "tool_call_id", "requested_by", "status", "error_type")
    assert _rows(calls, *columns) == [("book", "c1", "2" * 16, "error", "PermissionError")]
    merged = tables["drops"].filter(pl.col("id").str.starts_with("4" * 16))
    assert merged["reason"].to_list() == ["not_a_call"]


def span_events(tables: Tables) -> None:
    inputs, outputs = tables["calls"]["input"].to_list(), tables["calls"]["output"].to_list()
    assert [json.loads(text) for text in inputs] == [MESSAGE, MESSAGE]
    answers = [json.loads(text) for text in outputs]
    assert [one["parts"] for answer in answers for one in answer] == [ANSWER[0]["parts"]] * 2
    assert tables["calls"]["finish_reason"].to_list() == ["end_turn", None]


def legacy_responses(tables: Tables) -> None:
    columns = ("kind", "name", "input_tokens", "output_tokens")
    assert _rows(tables["calls"], *columns) == [("llm", "m", 11, 7)]
    assert _states(tables) == [("input", "hello"), ("answer", "hi")]


def left_stream(tables: Tables) -> None:
    assert _rows(tables["calls"], "kind", "status", "delivered") == [("llm", "ok", False)]
    assert _states(tables, "answer") == []


def background_call(tables: Tables) -> None:
    assert _states(tables, "answer") == [("answer", "Hello.")]
    assert _states(tables, "shop.output") == [("shop.output", "Hello.")]


def traceloop_retrieval(tables: Tables) -> None:
    calls = tables["calls"]
    assert calls["input"].to_list() == ["q", "q"]
    assert [json.loads(text) for text in calls["output"]] == [[{"page_content": "d"}]] * 2
    states = tables["states"].partition_by("execution_id", maintain_order=True)
    one, other = (rows.select("variable", "digest").rows() for rows in states)
    assert one == other
    assert ("retrieval.R.query", "q") in _states(tables)


def dspy_tool(tables: Tables) -> None:
    tool = tables["calls"].filter(pl.col("kind") == "tool")
    arguments = '{"city": "Paris"}'
    assert _rows(tool, "name", "arguments", "result") == [("weather", arguments, "It is sunny.")]


def repeated_result(tables: Tables) -> None:
    assert _states(tables, "tool.w.result") == [("tool.w.result", "same")] * 2


def embedding_usage(tables: Tables) -> None:
    assert _rows(tables["calls"], "kind", "input_tokens", "output_tokens") == [
        ("embedding", 3, None)
    ]


def chained_parallel_tools(tables: Tables) -> None:
    tools = tables["calls"].filter(kind="tool")
    assert _rows(tools, "arguments", "status", "requested_by") == [
        ('{"city": "Rome"}', "ok", "2" * 16),
        ('{"city": "Oslo"}', "error", "2" * 16),
    ]


def judge_inside_a_call(tables: Tables) -> None:
    calls = tables["calls"]
    assert _rows(calls, "kind", "model") == [("agent", None), ("llm", "m"), ("llm", "judge")]
    assert calls["capture_mismatch"].null_count() == 3


def parallel_equal_answers(tables: Tables) -> None:
    rows = tables["calls"].filter(kind="llm")["input"]
    texts = [json.loads(text)[0]["parts"][0]["content"] for text in rows]
    assert texts == ["is it raining in Rome?", "is it raining in Oslo?"]


def agents_of_one_name(tables: Tables) -> None:
    assert _rows(tables["calls"], "kind", "agent", "parent_id") == [
        ("agent", "helper", None),
        ("agent", "helper", "1" * 16),
        ("llm", "helper", "2" * 16),
    ]


def merged(tables: Tables, *columns: str) -> list[tuple[Any, ...]]:
    """Return the calls by their start: the columns, and the number of their spans."""
    ordered = tables["calls"].sort("execution_id", "start", "call_id")
    return ordered.select(*columns, pl.col("source_spans").list.len()).rows()


def client_record_and_span(tables: Tables) -> None:
    columns = ("kind", "agent", "parent_id", "tool_call_id", "input_tokens")
    assert merged(tables, *columns) == [
        ("agent", "a", None, None, None, 1),
        ("llm", "a", "1" * 16, None, 9, 2),
        ("tool", "a", "1" * 16, "c1", None, 2),
    ]


def client_record_of_another_call(tables: Tables) -> None:
    calls = merged(tables, "kind", "tool_call_id", "parent_id")
    assert sorted(calls, key=str) == sorted(
        [
            ("agent", None, None, 1),
            *(("llm", None, parent * 16, 1) for parent in ("1", "1", "2")),
            *(("tool", f"c{n}", parent * 16, 1) for n, parent in enumerate(("1", "1", "3"), 1)),
        ],
        key=str,
    )


def proxy_in_its_own_trace(tables: Tables) -> None:
    assert merged(tables, "execution_id", "call_id", "kind") == [
        ("a" * 32, "1" * 16, "agent", 1),
        ("a" * 32, "2" * 16, "llm", 2),
        ("a" * 32, "3" * 16, "llm", 1),
        ("c" * 32, "6" * 16, "llm", 1),
    ]


def cached_response(tables: Tables) -> None:
    assert merged(tables, "execution_id", "call_id", "parent_id") == [
        ("a" * 32, "1" * 16, None, 1),
        ("a" * 32, "2" * 16, "1" * 16, 1),
        ("c" * 32, "7" * 16, None, 1),
        ("c" * 32, "8" * 16, "7" * 16, 1),
        ("d" * 32, "4" * 16, None, 1),
        ("d" * 32, "5" * 16, "4" * 16, 1),
    ]


def tool_in_a_linked_trace(tables: Tables) -> None:
    tools = {"calls": tables["calls"].filter(kind="tool")}
    assert merged(tools, "execution_id", "call_id", "tool_call_id") == [
        ("2" * 32, "b" * 16, "k9", 1),
        ("f" * 32, "3" * 16, "c1", 2),
        ("f" * 32, "4" * 16, "c2", 1),
        ("f" * 32, "5" * 16, "c3", 2),
        ("f" * 32, "6" * 16, "c4", 2),
    ]
    assert tables["executions"]["execution_id"].sort().to_list() == ["2" * 32, "f" * 32]


def tool_in_a_trace_of_its_own(tables: Tables) -> None:
    tools = {"calls": tables["calls"].filter(kind="tool")}
    assert merged(tools, "execution_id", "call_id", "tool_call_id", "arguments") == [
        ("r.1", "3" * 16, "c1", '{"q": "x"}', 2),
        ("r.1", "4" * 16, "c2", '{"q": "x"}', 1),
        ("r.1", "b" * 16, "c2", '{"q": "z"}', 1),
        ("r.1", "c" * 16, "c1", '{"q": "x"}', 1),
    ]


def mlflow(tables: Tables) -> None:
    columns = ("kind", "name", "agent", "requested_by", "input_tokens", "output_tokens")
    assert _rows(tables["calls"], *columns) == [
        ("agent", "agent", "agent", None, None, None),
        ("llm", "m", "agent", None, 9, 7),
        ("tool", "get_weather", "agent", "2" * 16, None, None),
        ("llm", "m", "agent", None, 20, 4),
    ]
    [_, first, tool, second] = tables["calls"].sort("seq").to_dicts()
    assert json.loads(first["input"]) == MESSAGE
    assert json.loads(second["output"])[0]["parts"] == [{"type": "text", "content": "72 degrees."}]
    assert (tool["arguments"], tool["result"]) == ('{"city": "Paris"}', '{"temp": 72}')


def nested_http_500(tables: Tables) -> None:
    assert _rows(tables["calls"], "kind", "status") == [
        ("agent", "ok"),
        ("llm", "ok"),
        ("tool", "ok"),
    ]
    rewards = tables["rewards"].select("call_id", "rule", "value", "evidence")
    assert rewards.rows() == [("2" * 16, "http-failed", -0.1, "4" * 16)]


def unknown_dialect(tables: Tables) -> None:
    assert tables["calls"].is_empty()
    drops = tables["drops"].filter(pl.col("stage") == "spans")
    assert drops.sort("id").select(pl.col("id").str.head(1), "reason", "detail").rows() == [
        ("1", "not_a_call", "it describes no call: transport, or a process's own span"),
        (
            "2",
            "unknown_dialect",
            UNKNOWN.format("acme.kind, acme.request, acme.response, acme.usage"),
        ),
        ("3", "unknown_dialect", UNKNOWN.format("acme.args, acme.kind, acme.result")),
        ("4", "not_a_call", "it describes no call: transport, or a process's own span"),
    ]


def declared_dialect(tables: Tables) -> None:
    columns = ("kind", "name", "agent", "requested_by", "input_tokens", "finish_reason")
    assert _rows(tables["calls"], *columns) == [
        ("agent", "guide", "guide", None, None, None),
        ("llm", "m", "guide", None, 9, "tool_calls"),
        ("tool", "get_weather", "guide", "2" * 16, None, None),
    ]
    [prompt] = tables["calls"]["input"].filter(tables["calls"]["kind"] == "llm")
    assert json.loads(prompt) == MESSAGE
    assert "unknown_dialect" not in tables["drops"]["reason"]


def doubled(sessions: int) -> Callable[[Tables], None]:
    """Check agents that call the model, a tool and the model; each LLM call has two spans."""

    def check(tables: Tables) -> None:
        executions = tables["executions"].select("llm_calls", "tool_calls", "traces")
        assert executions.rows() == [(2, 1, 3)] * sessions
        llm = tables["calls"].filter(pl.col("kind") == "llm")
        assert llm["source_spans"].list.len().to_list() == [2] * 2 * sessions
        assert llm["capture_mismatch"].null_count() == llm.height
        for rows in llm.partition_by("execution_id"):
            first, second = rows["input"].to_list()
            assert json.loads(second)[: len(json.loads(first))] == json.loads(first)

    return check


def doubled_sessions(tables: Tables) -> None:
    doubled(2)(tables)
    assert tables["executions"]["execution_id"].sort().to_list() == ["s1", "s2"]


CHECKS: dict[str, Callable[[Tables], None]] = {
    "two_sessions_one_trace": two_sessions,
    "order_ab": order,
    "order_ba": order,
    "llm_span_around_two_calls": llm_span_around_two_calls,
    "not_specified_id": not_specified_id,
    "span_events": span_events,
    "legacy_responses": legacy_responses,
    "left_stream": left_stream,
    "background_call": background_call,
    "traceloop_retrieval": traceloop_retrieval,
    "dspy_tool": dspy_tool,
    "repeated_result": repeated_result,
    "embedding_usage": embedding_usage,
    "chained_parallel_tools": chained_parallel_tools,
    "judge_inside_a_call": judge_inside_a_call,
    "parallel_equal_answers": parallel_equal_answers,
    "agents_of_one_name": agents_of_one_name,
    "client_record_and_span": client_record_and_span,
    "client_record_of_another_call": client_record_of_another_call,
    "proxy_in_its_own_trace": proxy_in_its_own_trace,
    "cached_response": cached_response,
    "tool_in_a_linked_trace": tool_in_a_linked_trace,
    "tool_in_a_trace_of_its_own": tool_in_a_trace_of_its_own,
    "mlflow": mlflow,
    "nested_http_500": nested_http_500,
    "unknown_dialect": unknown_dialect,
    "declared_dialect": declared_dialect,
    "doubled_traces": doubled_sessions,
    "doubled_stream": doubled(1),
    "doubled_threads": doubled(5),
}
"""By file: what its tables must contain."""


@pytest.mark.parametrize("name", sorted(path.stem for path in REPRO.glob("*.json")))
def test_a_file_is_read_as_it_happened(
    name: str, read: Callable[[str, Path], Tables], tmp_path: Path
) -> None:
    file = REPRO / f"{name}.json"
    CHECKS[name](read(name, file))
    requests = file.read_text().splitlines()
    if len(requests) > 1:  # of several senders, any may be first
        backwards = tmp_path / file.name
        backwards.write_text("\n".join(reversed(requests)))
        CHECKS[name](read(name, backwards))
