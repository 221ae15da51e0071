"""What a real Phoenix and a real MLflow answer, against the same spans sent to ltrain."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.collector.sources.servers.serving import recorded, serving
from tests.otlp import open_empty_store

from ltrain_collector.sources import Window, open_server
from ltrain_collector.store import Store
from ltrain_collector.transfer.from_server import import_server
from ltrain_collector.transfer.importing import ImportCounts, import_files
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.rewards import read_evaluations
from ltrain_transforms.source import Selection, read_spans

FIXTURES = Path("tests/fixtures")
EVALUATIONS = """
SELECT EvaluationName, toFloat64OrNull(EvaluationValue), EvaluationLabel,
    SpanAttributes['gen_ai.evaluation.explanation'], SpanAttributes['ltrain.evaluation.author']
FROM otel.spans WHERE SpanName = 'gen_ai.evaluation.result' ORDER BY EvaluationName
"""
TIMES = ("start", "end", "gap")
"""Columns with times, which Phoenix keeps in microseconds."""


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def from_server(store: Store, source: str) -> ImportCounts:
    address, server = open_server(source)
    counts, _, _ = import_server(store, str(address), server, Window(), lambda _: None)
    return counts


def found(store: Store) -> tuple[pl.DataFrame, pl.DataFrame]:
    spans, _ = read_spans(store, Source(execution="trace"), Selection())
    frame = calls(spans)[0]
    return frame, read_evaluations(spans, frame)[0]


def comparable(frame: pl.DataFrame) -> list[dict[str, Any]]:
    ordered = frame.sort("start", "call_id")
    return ordered.drop(*(name for name in TIMES if name in ordered.columns)).to_dicts()


def direct(tmp_path: Path, fixture: str) -> list[dict[str, Any]]:
    with open_empty_store(tmp_path / "direct") as store:
        import_files(store, [FIXTURES / fixture], lambda _: None)
        return comparable(found(store)[0])


def test_phoenix(tmp_path: Path) -> None:
    expected = direct(tmp_path, "langgraph__openinference-0.1.80-genai.otlp.json")
    with (
        serving(recorded("phoenix-20.26.1"), "/v1/") as served,
        open_empty_store(tmp_path / "imported") as store,
    ):
        project = "langgraph__openinference-0_1_80-genai_ot"
        source = f"phoenix://127.0.0.1:{served.port}/{project}"
        counts = from_server(store, source)
        assert (counts.records, counts.stored, counts.unreadable) == (35, 35, 0)
        frame, evaluations = found(store)
        assert comparable(frame) == expected
        assert store.query(EVALUATIONS).rows() == [
            ("correct", 0.5, "partly", "half of it", "llm"),
            ("helpful", 0.9, "", "", "human"),
            ("thumbs", 1.0, "", "", "human"),
        ]
        kinds = dict(frame.select("call_id", "kind").iter_rows())
        judged = evaluations.sort("name").select("name", "call_id").rows()
        assert [(name, kinds.get(call)) for name, call in judged] == [
            ("correct", "llm"), ("helpful", None), ("thumbs", None),
        ]  # fmt: skip
        again = from_server(store, source)
        assert (again.stored, again.new_rows["spans"]) == (35, 0)


def test_mlflow(tmp_path: Path) -> None:
    expected = direct(tmp_path, "platforms/openai__mlflow-3.17.2.otlp.json")
    with (
        serving(recorded("mlflow-3.17.2"), "/api/") as served,
        open_empty_store(tmp_path / "imported") as store,
    ):
        counts = from_server(store, f"mlflow://127.0.0.1:{served.port}/openai__mlflow-3.17.2.otlp")
        assert (counts.records, counts.stored, counts.unreadable) == (11, 11, 0)
        assert comparable(found(store)[0]) == expected
        assert store.query(EVALUATIONS).rows() == [
            ("correct", 1.0, "", "as expected", "human"),
            ("relevance", 0.0, "no", "", "llm"),
            ("style", 0.25, "", "", "code"),
        ]
