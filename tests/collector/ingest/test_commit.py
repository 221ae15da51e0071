import asyncio

import pytest
from opentelemetry.metrics import NoOpMeter
from tests.own_metrics import values

from ltrain_collector.errors import Malformed, QueryFailed, Unavailable
from ltrain_collector.ingest import commit
from ltrain_collector.ingest.commit import GroupCommit, Insert
from ltrain_collector.ingest.instruments import IngestInstruments
from ltrain_collector.metrics import OwnMetrics
from ltrain_collector.signals.writer import Block

TABLE = "otel.otel_traces"


def group_commit(insert: Insert, metrics: OwnMetrics | None = None) -> GroupCommit:
    meter = metrics.meter if metrics else NoOpMeter("test")
    return GroupCommit(insert, TABLE, IngestInstruments(meter), 0.01)


async def together(group: GroupCommit, *payloads: bytes) -> list[BaseException | None]:
    """Commit all blocks at once, and return the result or error of each."""
    task = asyncio.create_task(group.run())
    commits = (group.commit(Block(payload, 1)) for payload in payloads)
    results = await asyncio.gather(*commits, return_exceptions=True)
    task.cancel()
    return results


def test_what_arrives_together_is_inserted_once() -> None:
    inserted: list[list[bytes]] = []
    results = asyncio.run(together(group_commit(inserted.append), b"a", b"b", b"c"))
    assert inserted == [[b"a", b"b", b"c"]]
    assert results == [None, None, None]


@pytest.mark.parametrize("error", [QueryFailed("Code: 27. DB::Exception", 27), ValueError("?")])
def test_the_bad_one_fails_alone(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    inserted: list[bytes] = []

    def insert(payloads: list[bytes]) -> None:
        if b"bad" in payloads:
            raise error
        inserted.extend(payloads)

    results = asyncio.run(together(group_commit(insert), b"a", b"bad", b"c"))
    assert inserted == [b"a", b"c"]
    assert [type(one) for one in results] == [type(None), Unavailable, type(None)]
    assert "1 row could not be inserted" in caplog.text


@pytest.mark.parametrize(
    ("text", "code", "tries"),
    [
        ("in create_directories: Read-only file system", 1001, 1),
        ("in create_directories: No space left on device", 1001, 1),
        ("Cannot reserve 1.00 MiB, not enough space", 243, 1),
        ("Cannot parse 'Read-only file system'", 27, 3),
    ],
)
def test_a_disk_that_refuses_a_group_is_not_tried_again_for_each_request(
    text: str, code: int, tries: int
) -> None:
    inserted: list[list[bytes]] = []

    def insert(payloads: list[bytes]) -> None:
        inserted.append(payloads)
        raise QueryFailed(text, code)

    results = asyncio.run(together(group_commit(insert), b"a", b"b"))
    assert (len(inserted), [type(one) for one in results]) == (tries, [Unavailable, Unavailable])


def test_a_group_is_not_larger_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "GROUP_BYTES", 5)
    inserted: list[list[bytes]] = []
    asyncio.run(together(group_commit(inserted.append), b"123", b"456", b"78", b"9"))
    assert inserted == [[b"123", b"456"], [b"78", b"9"]]


@pytest.mark.parametrize(("rows", "interval"), [(1, commit.PACE), (500, commit.BUSY_PACE)])
def test_inserts_keep_their_interval(rows: int, interval: float) -> None:
    async def one_after_another() -> float:
        metrics = OwnMetrics()
        group = group_commit(lambda _: None, metrics)
        task = asyncio.create_task(group.run())
        begun = asyncio.get_running_loop().time()
        for _ in range(4):
            await group.commit(Block(b"a", rows))
        task.cancel()
        assert values(metrics.samples())["inserts_total", TABLE] == 4
        return asyncio.get_running_loop().time() - begun

    assert asyncio.run(one_after_another()) > 3 * interval


def test_times_of_many_months_are_not_tried_again() -> None:
    def insert(payloads: list[bytes]) -> None:
        raise QueryFailed(
            "Code: 252. DB::Exception: Too many partitions for single INSERT block", 252
        )

    results = asyncio.run(together(group_commit(insert), b"a"))
    assert isinstance(results[0], Malformed)
    assert "more than 100 different months" in str(results[0])


def test_what_was_done_is_counted() -> None:
    metrics = OwnMetrics()
    asyncio.run(together(group_commit(lambda _: None, metrics), b"a", b"b", b"c"))
    found = values(metrics.samples())
    expected = {
        ("inserts_total", TABLE): 1,
        ("inserted_rows_total", TABLE): 3,
        ("insert_failures_total", TABLE): 0,
        ("rows_per_insert_bucket", TABLE, "1.0"): 0,
        ("rows_per_insert_bucket", TABLE, "8.0"): 1,
        ("rows_per_insert_sum", TABLE): 3,
    }
    assert {key: found.get(key) for key in expected} == expected
