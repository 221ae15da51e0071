"""Traces that describe the same model calls are read together, from a real store."""

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_collector.transfer.importing import import_files
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, plan_batches, read_spans
from ltrain_transforms.source.call_keys import related_traces

REPRO = Path(__file__).parents[2] / "repro"
NAMES = (
    *("doubled_traces", "doubled_stream", "doubled_threads"),
    *("proxy_in_its_own_trace", "tool_in_a_linked_trace"),
)


def shuffled(name: str, folder: Path, seed: int) -> Path:
    """Write a file of one request for each span, in another order."""
    documents = map(json.loads, (REPRO / f"{name}.json").read_text().splitlines())
    singles = [
        {
            "resource": resource["resource"],
            "scopeSpans": [{"scope": scope["scope"], "spans": [one]}],
        }
        for document in documents
        for resource in document["resourceSpans"]
        for scope in resource["scopeSpans"]
        for one in scope["spans"]
    ]
    random.Random(seed).shuffle(singles)
    path = folder / f"{name}-{seed}.json"
    path.write_text(json.dumps({"resourceSpans": singles}))
    return path


def read(store: Store, source: Source, spans: int) -> tuple[pl.DataFrame, int]:
    """Return the calls of all batches, and the number of batches."""
    batches = plan_batches(store, source, Selection(), spans)
    frames = [calls(read_spans(store, source, Selection(), one)[0])[0] for one in batches]
    return pl.concat(frames).sort("execution_id", "seq"), len(batches)


@pytest.mark.parametrize("execution", ["trace", "session"])
def test_neither_batches_nor_the_order_of_storage_change_a_call(
    store: Store, tmp_path: Path, execution: Any
) -> None:
    source = Source(execution=execution)
    frames, counts = [], []
    for seed, spans in ((0, 10_000), (1, 1), (2, 5)):
        store.command("TRUNCATE TABLE otel.otel_traces")
        for name in NAMES:
            import_files(store, [shuffled(name, tmp_path, seed)], lambda progress: None)
        rows, count = read(store, source, spans)
        frames.append(rows)
        counts.append(count)
    assert counts[0] == 1 < counts[1]
    assert_frame_equal(frames[0], frames[1])
    assert_frame_equal(frames[0], frames[2])
    assert frames[0].filter(kind="llm").height == 20


def rows_of(store: Store) -> list[tuple[list[str], list[str]]]:
    found = store.query(related_traces("FROM otel.spans"))
    return sorted((sorted(units), sorted(scopes)) for units, scopes in found.iter_rows())


def test_calls_are_related_by_process_key_and_time(store: Store, scene: Any) -> None:
    def model(trace: str, scope: str, at: int, *, process: str = "p", **more: str) -> None:
        attempt = scene.attempt()
        attempt.clock = attempt.clock + at * 1_000_000
        attributes = {"gen_ai.operation.name": "chat", **more}
        attempt.emit("chat", scope, attributes, named=False, process=process, trace=trace * 32)

    same = {"gen_ai.response.id": "r"}
    model("a", "x", 0, **same)
    model("b", "y", 0, **same)
    model("c", "y", 500, **same)
    model("d", "y", 0, process="q", **same)
    model("e", "x", 0, **{"gen_ai.response.id": "s"})
    model("f", "x", 0, **{"gen_ai.response.id": "s"})
    answer = {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "yes"}
    model("1", "x", 0, **answer)  # of two processes, and no id
    model("2", "y", 0, process="q", **answer)
    insert_otlp(store, scene.request())
    assert rows_of(store) == [(["a" * 32, "b" * 32, "d" * 32], ["x", "y"])]


def test_calls_that_are_nested_in_their_own_traces_are_not_related(
    store: Store, scene: Any
) -> None:
    answer = {"gen_ai.operation.name": "chat", "gen_ai.completion.0.tool_calls.0.name": "search"}
    for trace in "abc":
        for scope in ("langchain", "openai"):
            scene.attempt().emit("chat", scope, answer, named=False, process="p", trace=trace * 32)
    insert_otlp(store, scene.request())
    assert rows_of(store) == []


def test_only_model_calls_of_the_strays_instrumentation_show_that_a_call_has_its_own(
    store: Store, scene: Any
) -> None:
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "hi"}]}]
    chat = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": json.dumps(answer)}
    emit = scene.attempt().emit
    place: dict[str, Any] = {"named": False, "process": "p"}
    host = emit("chat", "langchain", chat, trace="a" * 32, **place)
    start, end = scene.attempts[-1].spans[-1].start, scene.attempts[-1].spans[-1].end
    embeddings = {"gen_ai.operation.name": "embeddings"}
    emit("embeddings", "openai", embeddings, trace="a" * 32, parent=host, **place)
    emit("chat", "openai", chat, trace="b" * 32, start=start, end=end, **place)
    insert_otlp(store, scene.request())
    spans, _ = read_spans(store, Source(execution="trace"), Selection())
    assert spans["execution_id"].unique().to_list() == ["a" * 32]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.output.messages": json.dumps([{"parts": [{"type": "text", "content": "hi "}]}])},
        {"gen_ai.completion.0.content": "hi"},
        {"openinference.span.kind": "LLM", "llm.output_messages.0.message.content": "hi"},
        {"gen_ai.completion.0.content": "hi", "gen_ai.completion.0.role": "assistant"},
    ],
)
def test_the_answer_is_read_from_each_form(
    store: Store, scene: Any, attributes: dict[str, str]
) -> None:
    first = {"gen_ai.operation.name": "chat", "gen_ai.completion.0.content": "hi"}
    for trace, scope, more in (("a", "x", first), ("b", "y", attributes)):
        legacy = "gen_ai.completion.0.role" in more  # traceloop's span of the Responses API
        operation = more if legacy else {"gen_ai.operation.name": "chat", **more}
        scene.attempt().emit("chat", scope, operation, named=False, process="p", trace=trace * 32)
    insert_otlp(store, scene.request())
    assert rows_of(store) == [(["a" * 32, "b" * 32], ["x", "y"])]


def test_a_process_without_an_instance_id_is_its_host_and_pid(store: Store, tmp_path: Path) -> None:
    document = json.loads((REPRO / "doubled_stream.json").read_text())
    document["resourceSpans"][0]["resource"]["attributes"] = [
        {"key": "host.name", "value": {"stringValue": "h"}},
        {"key": "process.pid", "value": {"intValue": "7"}},
    ]
    path = tmp_path / "pid.json"
    path.write_text(json.dumps(document))
    import_files(store, [path], lambda progress: None)
    spans, _ = read_spans(store, Source(execution="trace"), Selection())
    assert spans["process"].unique().to_list() == ["h/7"]
    assert spans["execution_id"].n_unique() == 1
