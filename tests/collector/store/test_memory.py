"""An insert beside a query that holds the engine's memory."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import chdb_engine
from ltrain_collector.store.chdb_engine import READER_TAG, TOTAL_MEMORY_MESSAGE, Engine

MIB = 1 << 20
ENDS_LATE = """SELECT editDistance(repeat('ab', 32000), repeat('ba', 32000 - length(x) % 2))
FROM (SELECT groupArray(number) AS x FROM numbers(30000000))"""
"""Does not end before its last step, of many seconds, in which it holds 256 MiB."""
ROWS = 13
INTO = "INSERT INTO t", "RowBinary", [b"\x80\x80\x80\x10" + b"x" * (32 * MIB)] * ROWS
"""Rows that fit alone, beside the engine's own 300 MiB, and not beside the query."""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setitem(chdb_engine.ENGINE_OPTIONS, "max_server_memory_usage", 900 * MIB)
    engine = Engine(tmp_path / "store")
    engine.command("CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY tuple()")
    yield engine
    engine.close()


@contextmanager
def reading(engine: Engine, sql: str) -> Iterator[threading.Thread]:
    """Run a reader's query; the block begins when it has read all and holds its memory."""

    def read() -> None:
        settings = {"log_comment": f"{READER_TAG}x", "max_threads": "1"}
        with suppress(QueryFailed), engine.session(settings) as session:
            session.query(sql)

    thread = threading.Thread(target=read)
    thread.start()
    until, before = time.monotonic() + 60, False
    while not (before and holds_memory(engine)):
        assert time.monotonic() < until
        before = holds_memory(engine)
        time.sleep(0.5)
    yield thread
    thread.join()


def holds_memory(engine: Engine) -> bool:
    sql = (
        "SELECT count() FROM system.processes WHERE read_rows >= 30000000 "
        f"AND memory_usage BETWEEN {250 * MIB} AND {300 * MIB} "
        f"AND startsWith(Settings['log_comment'], '{READER_TAG}')"
    )
    with engine.session({}) as session:
        return bool(int(session.query(sql, "TSV").bytes()))


def test_an_insert_waits_a_bounded_time_for_a_query_that_does_not_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chdb_engine, "MEMORY_WAIT", 1.0)
    with reading(engine, ENDS_LATE) as reader:
        with pytest.raises(QueryFailed, match=re.escape(TOTAL_MEMORY_MESSAGE)):
            engine.insert_first(*INTO)
        assert reader.is_alive()
    assert engine.insert_first(*INTO) == ROWS
