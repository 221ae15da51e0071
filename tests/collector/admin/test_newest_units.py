"""The newest rollouts and traces of a store, searched in windows of spans."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import polars as pl
import pytest
from tests.otlp import open_empty_store

from ltrain_collector.admin.newest_units import MAX_UNITS, UnitSearch
from ltrain_collector.admin.trace_filter import Position, TraceFilter
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
COLUMNS = "Timestamp, TraceId, SpanId, SpanName, SpanAttributes"
UNITS = 90
LONG = 1_200
"""Spans of a rollout that is longer than the windows for one."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Rollouts of several runs and traces whose spans alternate, with equal times."""
    folder: Path = tmp_path_factory.mktemp("units")
    random = Random(1)
    rows = list[str]()
    for unit in range(UNITS):
        chat = "'gen_ai.operation.name', 'chat'"
        begin, spans = random.randrange(2_000), LONG if unit == 7 else random.randrange(1, 60)
        for span in range(spans):
            names = chat if unit % 5 or span else "'a', 'b'"
            if unit % 3:
                run = f", 'ltrain.run.id', 'run-{unit % 4}'" if span % 7 else ""
                names += f", 'ltrain.rollout.id', 'r{unit:03}'{run}"
            place = f"toUInt64({NOON} + {begin + span * (unit % 4)} * 1000)"
            rows.append(
                f"(fromUnixTimestamp64Nano(toInt64({place})), '{unit:032x}', '{span:016x}', 'x', "
                f"map({names}))"
            )
    with open_empty_store(folder / "store") as store:
        store.command(f"INSERT INTO otel.otel_traces ({COLUMNS}) VALUES {', '.join(rows)}")
        yield store


def places(found: pl.DataFrame) -> list[Position]:
    """Return the positions of units."""
    return [Position(row["latest"], row["unit"]) for row in found.to_dicts()]


FILTERS = [
    TraceFilter(),
    TraceFilter(run="run-2"),
    TraceFilter(text="CHAT"),
    TraceFilter(text="nothing has this"),
    TraceFilter(without_calls=True),
]


@pytest.mark.parametrize("selection", FILTERS, ids=repr)
@pytest.mark.parametrize(
    "limit", [4, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, UNITS))]
)
def test_pages_are_those_of_a_search_of_all_spans(
    store: Store, selection: TraceFilter, limit: int
) -> None:
    everything = places(UnitSearch(store, selection)._query("true", {}, UNITS))
    assert len(everything) > 10 or selection.text == "nothing has this"
    assert places(UnitSearch(store, selection).find(limit)) == everything[:limit]
    for index in range(0, len(everything), 9):
        here = everything[index]
        older = UnitSearch(store, selection, older_than=here).find(limit)
        assert places(older) == everything[index + 1 :][:limit]
        newer = UnitSearch(store, selection, newer_than=here).find(limit)
        assert places(newer) == everything[:index][::-1][:limit]


def test_a_window_with_too_many_traces_is_not_named(store: Store) -> None:
    """Requests without a call can be many: every span is read instead."""
    count = MAX_UNITS + 1
    store.command(
        f"INSERT INTO otel.otel_traces ({COLUMNS}) SELECT "
        f"fromUnixTimestamp64Nano(toInt64({NOON} + 10000000000 + number)), hex(number + 100000), "
        f"hex(number), 'GET', map('http.method', 'GET') FROM numbers({count})"
    )
    limit = UNITS + 100
    with_calls = UnitSearch(store, TraceFilter()).find(limit)
    assert with_calls.equals(UnitSearch(store, TraceFilter())._query("true", {}, limit))
    assert UnitSearch(store, TraceFilter(without_calls=True)).find(limit).height == limit
