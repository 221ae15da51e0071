"""Spans that look like calls of an instrumentation that no dialect reads."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import open_empty_store
from tests.transforms.made import span, spans

from ltrain_collector.transfer.importing import import_files
from ltrain_transforms.calls import calls, newest_spans, unknown_attributes, unknown_spans
from ltrain_transforms.traces import iter_spans

REPRO = Path(__file__).parents[2] / "repro"


@pytest.mark.parametrize(
    "attributes",
    [
        {"acme.prompt": "hi", "acme.completion": "ho"},
        {"in_house.span.type": "LLM", "in_house.span.input": "[]"},
        {"in_house.spanType": '"CHAT_MODEL"', "in_house.spanInputs": "{}"},
        {"acme.prompt": "hi", "acme.completion": "ho", "opik.span_id": "1"},
        {"prompt": "hi", "model": "m", "logfire.msg_template": "ask"},
        {"in_house.tool_name": "w", "in_house.args": "{}", "in_house.tool": "w"},
        {"llmModel": "m", "llm.usage": "3"},
    ],
)
def test_a_span_with_attributes_of_a_model_or_a_tool_looks_like_a_call(attributes: Any) -> None:
    assert unknown_attributes(*iter_spans(spans(span("s", attributes)))) != []


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"http.request.method": "GET", "http.response.status_code": "200"},
        {"messaging.message.id": "1", "messaging.operation.type": "receive"},
        {"db.system": "postgresql", "db.query.text": "SELECT 1"},
        {"celery.task.args": "[]", "celery.task.result": "3"},  # no model
        {"vehicle.model": "T"},  # nothing else of a call
        {"ltrain.policy": "p", "ltrain.prompt_token_ids": "[1]", "x.output": "y"},
        {"acme.prompt": "hi", "acme.completion": "ho", "gen_ai.operation.name": "evaluate"},
    ],
)
def test_a_span_of_anything_else_does_not(attributes: Any) -> None:
    assert unknown_attributes(*iter_spans(spans(span("s", attributes)))) == []


def test_the_store_finds_the_same_spans(tmp_path: Path) -> None:
    with open_empty_store(tmp_path / "store") as store:
        import_files(store, [REPRO / "unknown_dialect.json"], lambda progress: None)
        found = store.query(unknown_spans("otel.spans"))
        assert store.query(unknown_spans(newest_spans())).equals(found)
    names = "acme.args, acme.kind, acme.request, acme.response, acme.result, acme.usage"
    assert found.rows() == [("acme.tracing", "2.1", 2, names)]
    assert found.schema["spans"] == pl.UInt64


def test_another_span_of_a_known_scope_is_not_unknown() -> None:
    unknown = span("inner", {"tool.name": "w", "tool.use_id": "k"}, scope="a-client")
    assert calls(spans(unknown))[1]["reason"].to_list() == ["unknown_dialect"]
    known = span("call", {"gen_ai.operation.name": "chat"}, scope="a-client")
    assert calls(spans(unknown, known))[1].is_empty()


def test_no_span_of_a_known_instrumentation_is_unknown(tmp_path: Path) -> None:
    with open_empty_store(tmp_path / "store") as store:
        files = sorted((REPRO.parent / "fixtures").rglob("*.otlp.json"))
        import_files(store, files, lambda progress: None)
        assert store.query("SELECT count() AS n FROM otel.spans")["n"].item() > 300
        assert store.query(unknown_spans("otel.spans")).rows() == []
