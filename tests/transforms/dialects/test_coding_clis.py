"""Log records of coding CLIs, captured, as calls: alone, and with the gateway's spans."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import emptied, insert_otlp, open_empty_store
from tests.transforms.made import texts

from ltrain_collector.signals import LOGS, TRACES, Signal, otlp_json
from ltrain_collector.store import Store
from ltrain_transforms.calls import calls, executions
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

CAPTURES = Path(__file__).parents[2] / "fixtures" / "coding_clis"
QWEN, NEW_QWEN, CODEX = "qwen-code__0.15.10", "qwen-code__0.24.4", "codex__0.171.0"
CONVERSATION = "qwen-code__0.15.10-conversations"
"""Through a gateway that joins the calls without a trace to conversations."""
GEMINI = "gemini-cli__0.61.0"
CLAUDE = "claude-code__documented"
"""Made from its documentation, not captured."""
CLAUDE_SPANS = "claude-code__2.1.197"
"""Detailed traces (`ENABLE_BETA_TRACING_DETAILED`) of a scripted API; its prompts are cut."""

Document = dict[str, Any]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_empty_store(tmp_path_factory.mktemp("store") / "store") as opened:
        yield opened


@pytest.fixture
def store(opened: Store) -> Store:
    return emptied(opened)


def logs_of(name: str) -> Document:
    document: Document = json.loads((CAPTURES / f"{name}.logs.json").read_text())
    return document


def traces_of(name: str) -> Document:
    document: Document = json.loads((CAPTURES / f"{name}.traces.json").read_text())
    return document


def insert(store: Store, document: Document, signal: Signal) -> None:
    request = otlp_json.parse_json(json.dumps(document).encode(), signal.request)
    insert_otlp(store, request.SerializeToString(), signal)


def records_of(document: Document) -> list[Document]:
    """Return one document for each log record, with its resource and scope."""
    return [
        {"resourceLogs": [{**each, "scopeLogs": [{**scoped, "logRecords": [record]}]}]}
        for each in document["resourceLogs"]
        for scoped in each["scopeLogs"]
        for record in scoped["logRecords"]
    ]


def insert_rollout(store: Store, name: str) -> None:
    """Insert records and spans, stamped by the environment or by the key of an attempt."""
    stamp = {"key": "ltrain.rollout.id", "value": {"stringValue": "ro-1"}}
    for document, signal, key in (
        (logs_of(name), LOGS, "resourceLogs"),
        (traces_of(name), TRACES, "resourceSpans"),
    ):
        for each in document[key]:
            each["resource"]["attributes"].append(stamp)
        insert(store, document, signal)


def record_in(document: Document) -> Document:
    record: Document = document["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    return record


def remove(record: Document, *names: str) -> None:
    record["attributes"] = [one for one in record["attributes"] if one["key"] not in names]


def read(store: Store, execution: str = "session") -> pl.DataFrame:
    source = Source.model_validate({"execution": execution})
    spans, drops = read_spans(store, source, Selection())
    assert drops.is_empty()
    rows, drops = calls(spans)
    assert drops.is_empty()
    return rows


def requesters(rows: pl.DataFrame) -> list[int | None]:
    """Return, for each tool, the number of the LLM call that requested it."""
    models = rows.filter(kind="llm")["call_id"].to_list()
    return [models.index(one) if one else None for one in rows.filter(kind="tool")["requested_by"]]


SHORT = ("kind", "name", "agent", "status", "error_type", "input_tokens", "output_tokens")

QWEN_ROWS = [
    ("agent", "qwen-code", "qwen-code", "ok", None, None, None),
    ("llm", "policy", "qwen-code", "ok", None, 71, 6),
    ("tool", "run_shell_command", "qwen-code", "ok", None, None, None),
    ("tool", "read_file", "qwen-code", "error", "file_not_found", None, None),
    ("llm", "policy", "qwen-code", "ok", None, 72, 7),
    ("tool", "agent", "qwen-code", "ok", None, None, None),
    ("llm", "policy", "general-purpose", "ok", None, 73, 8),
    ("tool", "task", "qwen-code", "error", "tool_not_registered", None, None),
    ("llm", "policy", "qwen-code", "ok", None, 74, 9),
]


def test_records_become_calls_of_one_session(store: Store) -> None:
    insert(store, logs_of(QWEN), LOGS)
    rows = read(store)
    assert rows["execution_id"].n_unique() == 1
    assert rows.select(SHORT).rows() == QWEN_ROWS
    assert requesters(rows) == [0, 0, 1, 1]
    prompt, answer = rows["input"][0], json.loads(rows["output"][8])
    assert prompt == "Change a.py so that hello is 2"
    assert answer[0]["parts"] == [{"type": "text", "content": "Done."}]
    tool = rows.row(2, named=True)
    assert json.loads(tool["arguments"])["command"] == "sed -i s/1/2/ a.py"
    assert tool["end"] - tool["start"] == 12_067_000_000
    assert rows["prompt_token_ids"].null_count() == rows.height


def test_a_record_and_the_gateways_span_of_a_call_are_one_row(store: Store) -> None:
    insert(store, logs_of(QWEN), LOGS)
    insert(store, traces_of(QWEN), TRACES)
    rows = read(store)
    assert rows["execution_id"].n_unique() == 1
    assert rows.select(SHORT).rows() == QWEN_ROWS
    models = rows.filter(kind="llm")
    assert models["source_spans"].list.len().to_list() == [2, 2, 2, 2]
    assert models["input"].null_count() == models["capture_mismatch"].drop_nulls().len() == 0
    assert requesters(rows) == [0, 0, 1, 1]
    answer = json.loads(models["output"][0])
    assert [part["name"] for part in answer[0]["parts"]] == ["run_shell_command", "read_file"]


def test_the_gateways_conversation_follows_the_clients_session(store: Store) -> None:
    insert(store, logs_of(CONVERSATION), LOGS)
    insert(store, traces_of(CONVERSATION), TRACES)
    rows = read(store)
    assert rows["execution_id"].n_unique() == 1
    assert rows.select("kind", "name", "status").rows() == [
        (kind, name, status) for kind, name, _, status, *_ in QWEN_ROWS
    ]
    assert set(rows["agent"]) == {"qwen-code", "general-purpose"}
    tools = rows.filter(kind="tool")
    assert tools["source_spans"].list.len().to_list() == [2, 2, 2, 2]
    assert tools["result"].null_count() == 0
    assert not tools["untimed"].any()
    milliseconds = [(end - start) // 10**6 for start, end in tools.select("start", "end").rows()]
    assert milliseconds == [4653, 25, 330, 0]
    assert requesters(rows) == [0, 0, 1, 1]


def test_a_prompt_is_a_trace_of_its_session(store: Store) -> None:
    insert(store, logs_of(QWEN), LOGS)
    insert(store, traces_of(QWEN), TRACES)
    rows = read(store, "trace")
    by_trace = rows.group_by("execution_id").agg(kinds=pl.col("kind").sort())
    main = ["agent", *["llm"] * 3, *["tool"] * 4]
    assert sorted(by_trace["kinds"].to_list()) == [main, ["llm"]]


def test_records_of_a_rollout_join_its_gateways_spans(store: Store) -> None:
    insert_rollout(store, QWEN)
    rows = read(store, "rollout")
    assert rows["execution_id"].unique().to_list() == ["ro-1.1"]
    assert rows.select(SHORT).rows() == QWEN_ROWS


def test_records_out_of_order_late_and_doubled_are_the_same_calls(store: Store) -> None:
    insert(store, traces_of(QWEN), TRACES)
    documents = records_of(logs_of(QWEN))
    shuffled = random.Random(7).sample([*documents, *documents], 2 * len(documents))
    for document in shuffled:
        insert(store, document, LOGS)
    assert read(store).select(SHORT).rows() == QWEN_ROWS


def test_records_without_ids_are_calls_of_their_own(store: Store) -> None:
    for document in records_of(logs_of(QWEN)):
        remove(record_in(document), "session.id", "prompt_id", "response_id")
        remove_resource_session(document)
        insert(store, document, LOGS)
    rows = read(store)
    assert rows["execution_id"].n_unique() == rows.height == len(QWEN_ROWS)
    assert sorted(rows["name"].to_list()) == sorted(name for _, name, *_ in QWEN_ROWS)


def remove_resource_session(document: Document) -> None:
    resource = document["resourceLogs"][0]["resource"]
    resource["attributes"] = [one for one in resource["attributes"] if one["key"] != "session.id"]


def set_duration(value: str) -> Callable[[Document], None]:
    def change(record: Document) -> None:
        remove(record, "duration_ms")
        record["attributes"].append({"key": "duration_ms", "value": {"stringValue": value}})

    return change


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        *(pytest.param(v, marks=pytest.mark.nightly) for v in ("", "-5", "inf", "1e300", "ten")),
    ],
)
def test_an_impossible_duration_counts_as_none(store: Store, value: str) -> None:
    document = next(one for one in records_of(logs_of(QWEN)) if is_named(one, "api_response"))
    set_duration(value)(record_in(document))
    insert(store, document, LOGS)
    [call] = read(store).to_dicts()
    assert call["start"] == call["end"] == int(record_in(document)["timeUnixNano"])


def is_named(document: Document, name: str) -> bool:
    return any(
        one["key"] == "event.name" and one["value"]["stringValue"].endswith(name)
        for one in record_in(document)["attributes"]
    )


def test_a_record_in_a_native_span_describes_its_call(store: Store) -> None:
    insert(store, logs_of(NEW_QWEN), LOGS)
    insert(store, traces_of(NEW_QWEN), TRACES)
    rows = read(store)
    assert rows["execution_id"].n_unique() == 1
    models, tools = rows.filter(kind="llm"), rows.filter(kind="tool")
    assert models["source_spans"].list.len().unique().to_list() == [3]
    assert models["input_tokens"].to_list() == [71, 72, 73, 74, 75, 76, 77]
    assert models["agent"].value_counts(sort=True).rows() == [
        ("qwen-code", 5),
        ("general-purpose", 2),
    ]
    assert tools["name"].to_list() == [
        "read_file",
        "run_shell_command",
        "read_file",
        "agent",
        "task",
    ]
    assert tools["source_spans"].list.len().unique().to_list() == [2]
    assert requesters(rows) == [0, 1, 1, 2, 2]


CODEX_ROWS = [
    ("agent", "codex", "codex", "ok", None, None, None),
    ("llm", "policy", None, "ok", None, 71, 6),
    ("tool", "exec_command", None, "ok", None, None, None),
    ("llm", "policy", None, "ok", None, 72, 7),
    ("tool", "exec_command", None, "ok", None, None, None),
    ("tool", "exec_command", None, "ok", None, None, None),
    ("llm", "policy", None, "ok", None, 73, 8),
]


def test_codex_writes_one_call_as_many_records(store: Store) -> None:
    insert(store, logs_of(CODEX), LOGS)
    rows = read(store)
    assert rows["execution_id"].n_unique() == 1
    assert rows.select(SHORT).rows() == CODEX_ROWS
    assert requesters(rows) == [0, 1, 1]
    assert rows["tool_call_id"].drop_nulls().len() == 3
    assert "hello = 1" in rows["result"][2]


def test_records_without_a_response_id_join_by_their_token_counts(store: Store) -> None:
    insert_rollout(store, CODEX)
    rows = read(store, "rollout")
    assert rows.select(SHORT).rows() == CODEX_ROWS
    models = rows.filter(kind="llm")
    assert models["source_spans"].list.len().to_list() == [2, 2, 2]
    assert all(end - start > 100_000_000 for end, start in models.select("end", "start").rows())
    assert requesters(rows) == [0, 1, 1]


def test_gemini_cli_records_whole_answers(store: Store) -> None:
    insert(store, logs_of(GEMINI), LOGS)
    insert(store, traces_of(GEMINI), TRACES)
    rows = read(store)
    assert rows["execution_id"].n_unique() == 1
    assert rows.select(SHORT).rows() == [
        ("agent", "gemini-cli", "gemini-cli", "ok", None, None, None),
        ("llm", "gemini-x", "gemini-cli", "ok", None, 70, 5),
        ("tool", "read_file", "gemini-cli", "ok", None, None, None),
        ("llm", "gemini-x", "gemini-cli", "ok", None, 71, 6),
        ("tool", "run_shell_command", "gemini-cli", "ok", None, None, None),
        ("tool", "read_file", "gemini-cli", "error", "file_not_found", None, None),
        ("llm", "gemini-x", "gemini-cli", "ok", None, 72, 7),
    ]
    assert requesters(rows) == [0, 1, 1]
    ids = store.query(
        "SELECT SpanAttributes['gen_ai.response.id'] AS id FROM otel.spans "
        "WHERE SpanName = 'gemini_cli.api_response' ORDER BY Timestamp"
    )
    assert ids["id"].to_list() == ["resp-0", "resp-1", "resp-2"]
    answers = [json.loads(text)[0]["parts"] for text in rows.filter(kind="llm")["output"]]
    assert [[part["type"] for part in parts] for parts in answers] == [
        ["tool_call"],
        ["tool_call", "tool_call"],
        ["text"],
    ]


MODEL = "claude-sonnet-5"
CLAUDE_ROWS = [
    ("agent", "claude-code", "claude-code", "ok", None, None, None),
    ("llm", MODEL, "claude-code", "ok", None, 1200, 40),
    ("tool", "Bash", "claude-code", "ok", None, None, None),
    ("tool", "Read", "claude-code", "error", "Error:ENOENT", None, None),
    ("tool", "Write", "claude-code", "error", "error", None, None),
    ("llm", MODEL, "claude-code", "error", "error", None, None),
    ("llm", MODEL, "Explore", "ok", None, 900, 20),
]


def test_records_of_claude_code_name_rejected_tools_and_failed_calls(store: Store) -> None:
    insert(store, logs_of(CLAUDE), LOGS)
    rows = read(store)
    assert rows["execution_id"].n_unique() == 1
    assert rows.select(SHORT).rows() == CLAUDE_ROWS
    assert requesters(rows) == [0, 0, 0]
    assert json.loads(rows["output"][1])[0]["parts"][0]["content"] == "I look."
    assert rows["tool_call_id"].drop_nulls().to_list() == ["toolu_01", "toolu_02", "toolu_03"]


def test_a_record_of_claude_code_and_its_span_are_one_row(store: Store) -> None:
    insert(store, logs_of(CLAUDE), LOGS)
    insert(store, traces_of(CLAUDE), TRACES)
    rows = read(store)
    agents, others = rows.filter(kind="agent"), rows.filter(pl.col("kind") != "agent")
    assert agents["input"].to_list() == ["Change a.py so that hello is 2"] * 2
    assert others.select(SHORT).rows() == CLAUDE_ROWS[1:]
    assert others["source_spans"].list.len().to_list() == [3, 3, 3, 1, 2, 2]


def test_an_execution_of_records_has_the_times_of_its_calls(store: Store) -> None:
    insert(store, logs_of(QWEN), LOGS)
    spans, _ = read_spans(store, Source.model_validate({"execution": "session"}), Selection())
    [execution] = executions(spans, calls(spans)[0]).to_dicts()
    assert (execution["llm_calls"], execution["tool_calls"]) == (4, 4)
    assert execution["start"] < execution["end"]


def test_spans_of_claude_code_alone(store: Store) -> None:
    """The span of a tool's execution knows whether it failed; a tool may start before its answer
    has ended."""
    insert(store, traces_of(CLAUDE_SPANS), TRACES)
    rows = read(store)
    assert rows.select(SHORT).rows() == [
        ("agent", "claude-code", "claude-code", "ok", None, None, None),
        ("llm", "claude-policy", "claude-code", "ok", None, 71, 6),
        ("tool", "Bash", "claude-code", "ok", None, None, None),
        ("llm", "claude-policy", "claude-code", "ok", None, 72, 7),
        ("tool", "Bash", "claude-code", "error", None, None, None),
        ("llm", "claude-policy", "claude-code", "ok", None, 73, 8),
    ]
    assert requesters(rows) == [0, 1]
    tools, last = rows.filter(kind="tool"), rows.row(-1, named=True)
    assert tools.select("tool_call_id", "arguments", "result").rows() == [
        ("toolu_1", '{"command":"echo sunny in Paris","description":"Look up"}', "sunny in Paris"),
        ("toolu_2", '{"command":"cat atlantis.txt","description":"Look up"}', None),
    ]
    assert rows["input"][0] == "weather in Paris?"
    assert (texts(last["output"]), last["finish_reason"], last["cached_tokens"]) == (
        [("assistant", "It is sunny in Paris.")],
        "end_turn",
        4,
    )
