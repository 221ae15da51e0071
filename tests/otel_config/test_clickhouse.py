"""Tables, views and roles for ClickHouse, run on the same engine as a library (chDB)."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from setup import cluster, dashboards
from tests.otel_config.collector import FOLDER, ROOT
from tests.otel_config.macros import expanded
from tests.otlp import open_empty_store

CLICKHOUSE = ROOT / "clickhouse"
USERS = CLICKHOUSE / "users.xml"
PASSWORDS = re.findall(r'from_env="(\w+)"', USERS.read_text())
DENIED, READONLY = 497, 164

Ask = Callable[..., list[Any]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Run statements on a node of a one-shard cluster, as whoever has a role."""

    def run(*statements: str, role: str = "") -> list[Any]:
        sql_queries = {"users": str(USERS) if role else "", "as": role, "run": statements}
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "engine.py"), str(tmp_path / "node")],
            input=json.dumps(sql_queries),
            env=os.environ | {name: "a password" for name in PASSWORDS},
            capture_output=True,
            text=True,
            check=True,
        )
        answers: list[Any] = json.loads(done.stdout)
        return answers

    return run


def statements(name: str) -> list[str]:
    """Return the statements of a file."""
    text = re.sub(r"^--.*\n", "", (CLICKHOUSE / name).read_text(), flags=re.MULTILINE)
    return [part.strip() for part in text.split(";\n") if part.strip()]


def unreplicated(statement: str) -> str:
    """Remove what needs a Keeper, which chDB lacks."""
    alone = re.sub(r" ON CLUSTER '\{cluster\}'", "", statement)
    alone = re.sub(r"Replicated(\w+)\('[^']*', '[^']*'(?:, )?", r"\1(", alone)
    assert "Replicated" not in alone and "ON CLUSTER" not in alone
    return alone


CLUSTER = [unreplicated(each) for each in statements("cluster/tables.sql")]
SPAN = """
INSERT INTO otel.otel_traces
(Timestamp, TraceId, SpanId, SpanName, ResourceAttributes, SpanAttributes) VALUES
('2026-09-21 12:00:00', '{trace}', '{span}', 'ltrain.rollout',
map('ltrain.sender', 'service'), {attributes})
"""
COLUMNS = """
SELECT name, type, default_kind, default_expression, compression_codec, is_in_sorting_key
FROM system.columns WHERE database = 'otel' AND table = '{}' ORDER BY position
"""

TEXTS = """
SELECT table, any(name) FROM system.columns
WHERE database = 'otel' AND default_kind = '' AND type IN ('String', 'LowCardinality(String)')
GROUP BY table
"""
COUNT = "SELECT count() FROM otel.{} FINAL WHERE {} = 'x'"
SHARDS = "SELECT DISTINCT {} FROM otel.{}_local WHERE {} = 'x'"


def ok(answers: list[Any]) -> list[Any]:
    assert [each for each in answers if isinstance(each, dict)] == []
    return answers


def test_the_files_say_what_a_new_store_has() -> None:
    for name, text in cluster.files().items():
        assert (CLICKHOUSE / name).read_text() == text, "run `make docs`"


def test_both_sets_of_tables_are_made_and_can_be_made_again(ask: Ask) -> None:
    for made in (statements("single/tables.sql"), CLUSTER):
        ok(ask("DROP DATABASE IF EXISTS otel", *made, *made))


@pytest.mark.parametrize("made", [statements("single/tables.sql"), CLUSTER], ids=("one", "many"))
def test_tables_of_an_older_store_get_the_columns_they_lack(made: list[str], ask: Ask) -> None:
    table = "otel_traces_local" if made is CLUSTER else "otel_traces"
    dropping = [f"ALTER TABLE otel.{name} DROP COLUMN Wave" for name in {table, "otel_traces"}]
    sql_queries = (
        f"SELECT name FROM ({COLUMNS.format(table).strip()})",
        "SELECT Wave FROM otel.spans",
    )
    answers = ok(ask(*made, *dropping, sql_queries[0], *made, *sql_queries))
    before, (*_, after, read) = answers[len(made) + len(dropping)], answers
    assert ["Wave"] not in before and ["Wave"] in after
    assert read == []


def test_rows_of_a_new_store_are_written_again_as_they_are() -> None:
    made = "CREATE TABLE otel.steps (step String) ENGINE = ReplacingMergeTree ORDER BY step"
    steps = cluster.Relation(
        "steps", "ReplacingMergeTree", "step", made, "", rows="(step) VALUES\n('a')"
    )
    for script in (list(cluster.single_server([steps])), list(cluster.cluster([steps]))):
        assert script[-1] == "INSERT INTO otel.steps (step) VALUES\n('a')"


def test_tables_of_a_cluster_have_the_columns_of_the_store(ask: Ask, tmp_path: Path) -> None:
    with open_empty_store(tmp_path / "store") as store:
        tables = store.query(
            "SELECT name FROM system.tables WHERE database = 'otel' AND engine LIKE '%MergeTree'"
        )["name"].to_list()
        assert "otel_traces" in tables
        # `rows()` of a frame are tuples, JSON has lists
        wanted = [
            [list(row) for row in store.query(COLUMNS.format(name)).rows()] for name in tables
        ]
    sql_queries = [COLUMNS.format(f"{name}_local") for name in tables]
    columns_by_table = ok(ask(*CLUSTER, *sql_queries))[len(CLUSTER) :]
    assert columns_by_table == wanted
    front = [f"SELECT name, type FROM ({COLUMNS.format(name).strip()})" for name in tables]
    assert [len(each) for each in ok(ask(*front))] == [len(each) for each in wanted]


def test_a_span_that_came_twice_through_the_cluster_is_read_once(ask: Ask) -> None:
    named = SPAN.format(trace="a", span="1", attributes="map('ltrain.rollout.id', 'r1')")
    nameless = SPAN.format(trace="a", span="2", attributes="map()")
    cut = SPAN.format(trace="b", span="3", attributes="map('ltrain.truncated', 'true')")
    whole = SPAN.format(trace="b", span="3", attributes="map('x', 'whole')")
    merging = "SYSTEM STOP MERGES"
    answers = ok(
        ask(
            *CLUSTER,
            merging,
            *(named, named, nameless, nameless, cut, whole, cut),
            "SELECT count() FROM otel.otel_traces",
            "SELECT TraceId, SpanId, RolloutId, SpanAttributes['x'] FROM otel.spans ORDER BY ALL",
            "SELECT TraceId, RolloutId FROM otel.trace_executions",
            "SELECT count() FROM otel.rollouts",
        )
    )
    assert answers[-4:] == [
        [[7]],
        [["a", "1", "r1", ""], ["a", "2", "", ""], ["b", "3", "", "whole"]],
        [["a", "r1"]],
        [[3]],
    ]


def test_every_table_of_a_cluster_returns_a_duplicate_row_once(ask: Ask) -> None:
    fronts = re.findall(r"otel, (\w+)_local,\s+(.*)\)$", "\n".join(CLUSTER), re.MULTILINE)
    ok(ask(*CLUSTER))
    (columns,) = ok(ask(TEXTS))
    text, sql_queries = dict(columns), []
    for name, expression in fronts:
        column = text[name]
        insert = f"INSERT INTO otel.{name} ({column}) SELECT 'x'"
        sql_queries += [insert, insert, COUNT.format(name, column)]
        sql_queries += [SHARDS.format(expression, name, column)]
    answers = ok(ask(*sql_queries))
    assert fronts and answers[2::4] == [[[1]]] * len(fronts)
    assert [len(shards) for shards in answers[3::4]] == [1] * len(fronts)


@pytest.mark.parametrize(
    ("key", "expression"),
    [
        ("A, TraceId", "if(TraceId != '', cityHash64(TraceId), cityHash64(A, TraceId))"),
        (
            "RolloutId, TraceId, RowHash",
            "if(RolloutId != '', cityHash64(RolloutId), if(TraceId != '', cityHash64(TraceId), "
            "cityHash64(RolloutId, TraceId, RowHash)))",
        ),
        ("ServiceName, toDate(At)", "cityHash64(ServiceName, toDate(At))"),
    ],
)
def test_a_shard_is_chosen_by_the_sorting_key(key: str, expression: str) -> None:
    assert cluster.shard(key) == expression


def test_copies_of_a_row_go_to_one_shard() -> None:
    """The shard depends on the sorting key only, so duplicate rows are on the same shard."""
    text = (CLICKHOUSE / "cluster" / "tables.sql").read_text()
    fronts = re.findall(r"Distributed\('\{cluster\}', otel, (\w+)_local,\s+(.*)\);\n", text)
    keys = dict(re.findall(r"otel\.(\w+)_local ON CLUSTER[^;]*?ORDER BY \(?([^;]*?)\)?\nSET", text))
    assert fronts and {name for name, _ in fronts} == keys.keys()
    for name, expression in fronts:
        columns = {each for each in re.findall(r"\w+", expression) if each[0].isupper()}
        assert columns <= set(re.findall(r"\w+", keys[name])), name


def test_every_statement_for_a_cluster_is_for_all_of_it_and_parses(ask: Ask) -> None:
    every = statements("cluster/tables.sql")
    # rows go through a Distributed table, from one node
    made = [each for each in every if not each.startswith("INSERT")]
    assert all("ON CLUSTER '{cluster}'" in each for each in made)
    ok(ask(*(f"EXPLAIN AST {each}" for each in made if not each.startswith("CREATE DATABASE"))))


INSERT = SPAN.format(trace="a", span="1", attributes="map()")
MAY: dict[str, list[tuple[str, int]]] = {
    "ltrain_exporter": [
        (INSERT, 0),
        ("DESC TABLE otel.otel_traces", 0),
        ("SELECT count() FROM otel.otel_traces", DENIED),
        ("SELECT count() FROM otel.spans", DENIED),
        ("ALTER TABLE otel.otel_traces DELETE WHERE 1", DENIED),
        ("DROP TABLE otel.otel_traces", DENIED),
        ("CREATE TABLE otel.x (a Int8) ENGINE = Memory", DENIED),
    ],
    "ltrain_reader": [
        ("SELECT count() FROM otel.spans", 0),
        ("SELECT count() FROM otel.evaluations SETTINGS max_threads = 1", 0),
        ("SELECT count() FROM system.parts WHERE database = 'otel'", 0),
        ("SELECT free_space FROM system.disks", 0),
        (INSERT, DENIED),
        ("DROP TABLE otel.otel_traces", DENIED),
        ("SELECT 1 SETTINGS readonly = 0", READONLY),
        ("SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')", DENIED),
        ("SELECT * FROM file('/etc/passwd', 'LineAsString')", DENIED),
    ],
    "ltrain_writer": [
        (INSERT, 0),
        ("SELECT count() FROM otel.spans", 0),
        ("DROP TABLE otel.otel_traces", DENIED),
        ("CREATE TABLE otel.x (a Int8) ENGINE = Memory", DENIED),
    ],
    "ltrain_migrator": [
        ("ALTER TABLE otel.otel_traces_local ADD COLUMN IF NOT EXISTS New String", 0),
        ("ALTER TABLE otel.otel_traces_local DROP PARTITION 202001", 0),
        ("CREATE DATABASE other", DENIED),
        ("SELECT * FROM system.users", DENIED),
    ],
}


@pytest.mark.parametrize("role", MAY)
def test_each_role_allows_only_what_it_needs(role: str, ask: Ask) -> None:
    # all of chDB's sessions are the user `default`, whose role the test changes
    owned = [each.replace("= CURRENT_USER", "= ltrain_migrator") for each in CLUSTER]
    assert owned != CLUSTER
    ok(ask(*owned, role="ltrain_migrator"))
    answers = ask(*(statement for statement, _ in MAY[role]), role=role)
    got = [each["code"] if isinstance(each, dict) else 0 for each in answers]
    assert dict(zip((s for s, _ in MAY[role]), got, strict=True)) == dict(MAY[role])


def test_a_reader_may_ask_all_that_dashboards_ask_of_a_cluster(ask: Ask) -> None:
    chosen = {"run": None, "policy": None, "rollout": ["r1"], "evaluation": ["reward"]}
    now = datetime.now(UTC)
    panels = [panel for board in dashboards.dashboards() for panel in board.panels]
    queries = [expanded(panel.sql, now, now, chosen) for panel in panels]
    ok(ask(*CLUSTER))
    ok(ask(*queries, role="ltrain_reader"))


def test_every_user_has_a_role_a_profile_and_no_password_of_its_own() -> None:
    root = ElementTree.parse(USERS).getroot()
    roles = {each.tag for each in root.findall("roles/*")}
    profiles = {each.tag for each in root.findall("profiles/*")}
    people = root.findall("users/*")
    assert {each.tag for each in people} == roles == MAY.keys()
    for each in people:
        password = each.find("password")
        assert password is not None and password.get("from_env") and not password.text
        assert each.findtext("profile") in profiles
        assert [one.text for one in each.findall("grants/query")] == [f"GRANT {each.tag}"]


def test_the_exporter_writes_where_there_are_tables() -> None:
    exporter = yaml.safe_load((FOLDER / "to-clickhouse.yaml").read_text())["exporters"][
        "clickhouse"
    ]
    named = {exporter["traces_table_name"], exporter["logs_table_name"]}
    named |= {each["name"] for each in exporter["metrics_tables"].values()}
    assert exporter["create_schema"] is False and exporter["username"] == "ltrain_exporter"
    assert all(name.startswith("otel_") for name in named), "the role's grants are for otel_*"
    made = set(
        re.findall(r"IF NOT EXISTS otel\.(\w+)\n\(", (CLICKHOUSE / "single/tables.sql").read_text())
    )
    signals = {"_".join(name.split("_")[:2]) for name in made}
    assert "otel_traces" in signals
    assert {name for name in named if "_".join(name.split("_")[:2]) in signals} <= made


def test_the_cluster_s_nodes_say_which_they_are() -> None:
    root = ElementTree.parse(CLICKHOUSE / "cluster" / "cluster.xml").getroot()
    text = (CLICKHOUSE / "cluster" / "tables.sql").read_text()
    macros = {each.tag for each in root.findall("macros/*")}
    assert set(re.findall(r"\{(\w+)\}", text)) == macros
    assert root.find(f"remote_servers/{root.findtext('macros/cluster')}") is not None
    assert all(each.text == "true" for each in root.iter("internal_replication"))
