import asyncio

import pytest

from ltrain_collector.errors import QueryFailed
from ltrain_collector.ingest import commit
from ltrain_collector.ingest.commit import GroupCommit, Overloaded


async def together(group: GroupCommit, *payloads: bytes) -> list[BaseException | None]:
    """Commit all at once and give what each was told."""
    task = asyncio.create_task(group.run())
    told = await asyncio.gather(*map(group.commit, payloads), return_exceptions=True)
    task.cancel()
    return told


def test_what_arrives_together_is_inserted_once() -> None:
    inserted: list[list[bytes]] = []
    told = asyncio.run(together(GroupCommit(inserted.append, 0.01), b"a", b"b", b"c"))
    assert inserted == [[b"a", b"b", b"c"]]
    assert told == [None, None, None]


@pytest.mark.parametrize("error", [QueryFailed("Code: 27. DB::Exception", 27), ValueError("?")])
def test_the_bad_one_fails_alone(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    inserted: list[bytes] = []

    def insert(payloads: list[bytes]) -> None:
        if b"bad" in payloads:
            raise error
        inserted.extend(payloads)

    told = asyncio.run(together(GroupCommit(insert, 0.01), b"a", b"bad", b"c"))
    assert inserted == [b"a", b"c"]
    assert [type(one) for one in told] == [type(None), QueryFailed, type(None)]
    assert "3 bytes could not be inserted" in caplog.text


def test_a_group_is_not_larger_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "GROUP_BYTES", 5)
    inserted: list[list[bytes]] = []
    asyncio.run(together(GroupCommit(inserted.append, 0.01), b"123", b"456", b"78", b"9"))
    assert inserted == [[b"123", b"456"], [b"78", b"9"]]


def test_inserts_keep_their_pace() -> None:
    async def one_after_another() -> float:
        group = GroupCommit(lambda _: None, 0.01, pace=0.1)
        task = asyncio.create_task(group.run())
        begun = asyncio.get_running_loop().time()
        for _ in range(4):
            await group.commit(b"a")
        task.cancel()
        assert group.inserts == 4
        return asyncio.get_running_loop().time() - begun

    assert asyncio.run(one_after_another()) > 0.3


def test_beyond_what_may_wait_clients_are_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit, "WAITING_BYTES", 5)
    told = asyncio.run(together(GroupCommit(lambda _: None, 0.01), b"123456", b"7"))
    assert told[0] is None
    assert isinstance(told[1], Overloaded)
