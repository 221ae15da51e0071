"""The query of every panel runs on a store with real captures and the spans of a run."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from setup import dashboards
from setup.dashboards import Dashboard, Panel
from tests.otel_config.macros import expanded
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.test_fixtures import FIXTURES, requests

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.identity import Identity
from ltrain_train.rollout.runner_spans import ClosingSpan, SpanWriter
from ltrain_train.workers import Outcome

BOARDS = dashboards.dashboards()
EACH = pytest.mark.parametrize(
    ("board", "panel"),
    [(board, panel) for board in BOARDS for panel in board.panels],
    ids=lambda each: getattr(each, "title", ""),
)
ALL = {"run": None, "policy": None, "rollout": ["r1"], "evaluation": ["reward"]}
ONE = ALL | {"run": ["demo"], "policy": ["sql"]}
NONE = ALL | {"run": ["it's none"], "policy": ["none"]}
STEP = {"loss": 0.25, "grad_norm": 1.5, "kl": 0.01, "clip_fraction": 0.125, "computed_tokens": 60}


class Into(SpanExporter):
    """Writes the SDK's exports to a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        insert_otlp(self.store, encode_spans(spans).SerializeToString())
        return SpanExportResult.SUCCESS


def write_run(provider: TracerProvider) -> None:
    """Write the spans of runner, gateway and learner for two waves of one task."""
    record = SpanWriter(provider)
    gateway = provider.get_tracer(attributes.SCOPE_GATEWAY)
    learner = provider.get_tracer(attributes.SCOPE_LEARNER)
    for wave, outcome, reward in ((0, Outcome.OK, 0.0), (1, Outcome.ERROR, 1.0)):
        who = Identity(
            run="demo", task="singers", rollout=f"r{wave + 1}", attempt=1, wave=wave, mode="train"
        )
        entry = record.write_dispatch(who, lease=60, task_input="x", prompts={})
        call = {
            "gen_ai.operation.name": "chat",
            "gen_ai.response.model": "tiny",
            "gen_ai.usage.input_tokens": 40,
            "gen_ai.usage.output_tokens": 8,
            attributes.POLICY_NAME: "sql",
            attributes.POLICY_VERSION: 0,
        }
        gateway.start_span("chat tiny", entry.context, attributes=who.attributes() | call).end()
        record.write_evaluation(entry, "reward", reward)
        reason = "" if outcome is Outcome.OK else "The agent raised KeyError."
        closing = ClosingSpan.from_attempt(entry, outcome, reason=reason, llm_calls=1, digests={})
        record.write_end(closing, {})
        policy = {attributes.POLICY_NAME: "sql", attributes.DATASET_ID: f"d{wave}"}
        step = STEP | {"step": wave + 1, "rows": 2, "tokens": 100}
        trained = {attributes.TRAIN + name: value for name, value in step.items()}
        for name, version, more in (
            (attributes.SPAN_STEP, wave, trained),
            (attributes.SPAN_PUBLISH, wave + 1, {}),
        ):
            span_attributes = policy | {attributes.POLICY_VERSION: version} | more
            learner.start_span(name, attributes=span_attributes).end()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_empty_store(tmp_path_factory.mktemp("boards") / "store") as opened:
        for path in sorted(FIXTURES.glob("*.otlp.json")):
            if ".logs." not in path.name:
                for body in requests(path.name, stamped=False):
                    insert_otlp(opened, body)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(Into(opened)))
        write_run(provider)
        provider.shutdown()
        yield opened


def run(store: Store, sql: str, chosen: dict[str, list[str] | None]) -> pl.DataFrame:
    start, end = datetime(2025, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(hours=1)
    return store.query(expanded(sql, start, end, chosen))


def test_dashboards_say_what_the_panels_declare() -> None:
    made = dashboards.files()
    there = {path.name: path.read_text() for path in dashboards.FOLDER.glob("*.json")}
    assert there == made, "run `make docs`"


@EACH
def test_a_panel_gives_rows_of_its_columns(board: Dashboard, panel: Panel, store: Store) -> None:
    found = run(store, panel.sql, ALL)
    assert found.columns == panel.columns
    assert found.height > 0
    empty = {name for name in found.columns if not found[name].is_not_null().any()}
    assert empty == ({"val"} if panel.title == "Reward by wave" else set())
    assert set(panel.units) <= set(panel.columns)


@EACH
def test_a_panel_follows_its_variables(board: Dashboard, panel: Panel, store: Store) -> None:
    for variable in ("run", "policy"):
        if f"${variable})" in panel.sql:
            assert variable in board.variables
            assert run(store, panel.sql, ONE).height > 0 or panel.title in NOT_IN_THE_RUN
            assert run(store, panel.sql, NONE).height == 0
    assert set(re.findall(r"\$\{(\w+)", panel.sql)) <= set(board.variables)


NOT_IN_THE_RUN = {"Errors", "Tools by status", "Slowest tools"}
"""Panels with rows from the captures, but not from the run that the test writes."""


@EACH
def test_a_time_series_has_times_names_and_numbers(
    board: Dashboard, panel: Panel, store: Store
) -> None:
    if panel.kind == "timeseries":
        kinds = run(store, panel.sql, ALL).schema
        time, *others = kinds.values()
        # the engine gives a DateTime as the seconds that it is
        assert time.is_temporal() or time == pl.UInt32
        assert all(kind.is_numeric() or kind == pl.String for kind in others)
        assert sum(kind == pl.String for kind in others) <= 1
        assert "ORDER BY time" in panel.sql


def test_what_some_panels_say_of_the_run(store: Store) -> None:
    panels = {panel.title: panel for board in BOARDS for panel in board.panels}

    def rows(title: str) -> list[dict[str, object]]:
        return run(store, panels[title].sql, ONE).to_dicts()

    assert rows("Reward by wave") == [
        {"wave": 0, "train": 0.0, "val": None},
        {"wave": 1, "train": 1.0, "val": None},
    ]
    (task,) = rows("By task")
    assert task == {"task": "singers", "rollouts": 2, "first": 0.0, "last": 1.0, "change": 1.0}
    assert {(row["rollout"], row["outcome"], row["reward"]) for row in rows("Rollouts")} == {
        ("r1", "ok", 0.0),
        ("r2", "error", 1.0),
    }
    assert [row["version"] for row in rows("Versions")] == [2, 1]
    (tokens,) = rows("Tokens by version")
    assert (tokens["input_tokens"], tokens["output_tokens"]) == (80, 16)
    (behind,) = rows("Staleness of calls, in policy versions")
    # the second wave's call was answered by version 0, after version 1 was loaded
    assert (behind["mean"], behind["most"]) == (0.5, 1)
    names = [row["name"] for row in rows("The rollout, span by span")]
    assert sorted(map(str, names)) == [
        "chat tiny",
        "gen_ai.evaluation.result",
        "ltrain.rollout",
        "ltrain.rollout.dispatch",
    ]
    metrics = {row["metric"]: row["last"] for row in rows("Every metric of the last step")}
    assert metrics == STEP | {"step": 2.0, "rows": 2.0, "tokens": 100.0}


@pytest.mark.parametrize("name", dashboards.VARIABLES)
def test_a_variable_offers_the_stored_names(name: str, store: Store) -> None:
    _, query, _ = dashboards.VARIABLES[name]
    offered = set(run(store, query, ALL).to_series().to_list())
    assert offered >= {"run": {"demo"}, "policy": {"sql"}, "evaluation": {"reward"}}.get(
        name, {"r1", "r2"}
    )


def test_panels_do_not_overlap_and_know_their_source() -> None:
    ids = set()
    for path in dashboards.FOLDER.glob("*.json"):
        document = json.loads(path.read_text())
        ids.add(document["uid"])
        taken: set[tuple[int, int]] = set()
        for panel in document["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken and max(x for x, _ in cells) < 24
            taken |= cells
            assert panel["datasource"]["type"] == "grafana-clickhouse-datasource"
    assert ids == {f"ltrain-{board.name}" for board in BOARDS}
