"""Migration of stores of any version, repeated, interrupted and concurrent."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp
from tests.property_examples import examples

from ltrain_collector import schema
from ltrain_collector.errors import BadTable, NotMigrated, QueryFailed, StoreNewer
from ltrain_collector.store.migration import migrate
from ltrain_collector.store.trace_store import Store

OLD = Path(__file__).parents[2] / "fixtures" / "store" / "0.1.0.sql"
SHAPE = (
    "SELECT table, name, type, default_kind, default_expression, compression_codec, position "
    "FROM system.columns WHERE database = 'otel' ORDER BY table, position"
)
TABLES = (
    "SELECT name, engine, replaceAll(create_table_query, ' TO INNER', '') AS made "
    "FROM system.tables WHERE database = 'otel' AND NOT startsWith(name, '.') ORDER BY name"
)


@pytest.fixture
def new(tmp_path: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Columns and tables of a new store."""
    with Store.open(f"chdb://{tmp_path}/new") as store:
        store.migrate()
        return store.query(SHAPE), store.query(TABLES)


@pytest.fixture
def old(tmp_path: Path, new: object) -> Iterator[Store]:
    """A store as version 0.1.0 made it."""
    with Store.open(f"chdb://{tmp_path}/old") as store:
        store.command("CREATE DATABASE otel")
        for statement in OLD.read_text().split(";\n"):
            store.command(statement)
        yield store


def test_a_store_of_the_first_release_becomes_equal_to_a_new_one(
    old: Store, new: tuple[pl.DataFrame, pl.DataFrame], request_of: Callable[..., bytes]
) -> None:
    attributes = {"ltrain__rollout__id": "r", "ltrain__domain": "db", "ltrain__wave": "3"}
    insert_otlp(old, request_of((1, 1), **attributes))
    done = old.migrate()
    assert done.steps == schema.steps()
    columns, tables = new
    assert_frame_equal(old.query(SHAPE), columns)
    assert_frame_equal(old.query(TABLES), tables)
    insert_otlp(old, request_of((1, 1), **attributes))
    insert_otlp(old, request_of((1, 2), **attributes))
    read = old.query("SELECT SpanId, RolloutId, Domain, Wave FROM otel.spans ORDER BY SpanId")
    assert read.rows() == [(f"{n:016x}", "r", "db", 3) for n in (1, 2)]


def test_a_second_migration_changes_nothing(old: Store) -> None:
    old.migrate()
    assert (old.migrate().steps, old.migrate().version) == ((), len(schema.steps()))
    written = old.query("SELECT step, version FROM otel.ltrain_migrations ORDER BY version, step")
    assert written["step"].to_list() == [*schema.steps(), "views"]
    newest = len(schema.steps())
    assert written["version"].to_list() == [*range(1, newest + 1), newest]


def test_a_view_with_a_new_name_replaces_the_old_one(folder: Store) -> None:
    folder.command("CREATE VIEW otel.rewards AS SELECT 1")
    folder.command("DROP VIEW otel.evaluations")
    folder.command(f"DELETE FROM otel.ltrain_migrations WHERE step = '{schema.RENAMED_VIEWS}'")
    folder.command("DELETE FROM otel.ltrain_migrations WHERE step = 'views'")
    with pytest.raises(NotMigrated, match="run `ltrain store migrate`"):
        folder.query("SELECT * FROM otel.evaluations")
    assert folder.migrate().steps == (schema.RENAMED_VIEWS,)
    views = "SELECT name FROM system.tables WHERE name IN ('rewards', 'evaluations')"
    assert folder.query(views).rows() == [("evaluations",)]


class Killed(BaseException):
    """Simulates the death of the process."""


class Mortal:
    """A store whose process dies before its n-th command."""

    def __init__(self, store: Store, lives: int) -> None:
        self.name, self.query, self._store, self._lives = store.name, store.query, store, lives

    def command(self, sql: str) -> None:
        if self._lives == 0:
            raise Killed
        self._lives -= 1
        self._store.command(sql)


STEP = 60 // examples(20, change=5)
"""A migration is killed before each third statement in the nightly run."""


def test_killed_before_any_of_its_statements_the_next_one_finishes(
    tmp_path: Path, new: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    columns, tables = new
    died = 0
    with Store.open(f"chdb://{tmp_path}/killed") as store:
        for lives in range(0, 100, STEP):  # each takes half a second
            store.command("DROP DATABASE IF EXISTS otel SYNC")
            try:
                migrate(Mortal(store, lives), {})
            except Killed:
                died += 1
            else:
                break
            store.migrate()
            assert_frame_equal(store.query(SHAPE), columns)
            assert_frame_equal(store.query(TABLES), tables)
    assert STEP * died == lives > 15


@pytest.mark.nightly
def test_several_at_once_are_as_one(
    start: Callable[..., object], tmp_path: Path, new: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    up = start(tmp_path / "up")
    dsn = up.owned  # type: ignore[attr-defined]
    with Store.open(dsn) as store:
        for _ in range(examples(3, change=1)):
            store.command("DROP DATABASE otel SYNC")

            def one(_: int) -> None:
                with Store.open(dsn) as own:
                    own.migrate()

            with ThreadPoolExecutor(6) as pool:
                list(pool.map(one, range(6)))
            columns, tables = new
            assert_frame_equal(store.query(SHAPE), columns)
            assert_frame_equal(store.query(TABLES), tables)


def test_a_store_that_is_newer_is_refused(folder: Store) -> None:
    folder.command("INSERT INTO otel.ltrain_migrations (step, version) VALUES ('99_later', 99)")
    with pytest.raises(
        StoreNewer, match=r"A newer ltrain .*\(steps 99_later\).*pip install --upgrade"
    ):
        folder.migrate()


def test_a_query_of_a_store_that_was_never_migrated_reports_it(old: Store) -> None:
    for sql in ("SELECT * FROM otel.tool_calls", "SELECT Domain FROM otel.spans"):
        with pytest.raises(NotMigrated, match="run `ltrain store migrate`"):
            old.query(sql)
        with pytest.raises(NotMigrated):
            list(old.stream(sql))
        with pytest.raises(NotMigrated):
            list(old.export(sql, "CSV"))
    old.migrate()
    with pytest.raises(QueryFailed, match="Code: 60") as caught:
        old.query("SELECT * FROM otel.tool_cals")
    assert not isinstance(caught.value, NotMigrated)


def test_an_exporters_table_that_does_not_exist_is_reported(folder: Store) -> None:
    with pytest.raises(BadTable, match=r"There is no table theirs\.otel_traces"):
        folder.migrate("theirs.otel_traces")


def test_every_statement_of_every_step_may_run_again(folder: Store) -> None:
    for step in schema.steps():
        for statement in schema.read_statements(step):
            folder.command(statement)
            folder.command(statement)
