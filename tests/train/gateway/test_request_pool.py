"""Large requests of one attempt leave time to those of others."""

import asyncio
import threading
import time

import pytest
from starlette.requests import Request

from ltrain_train.gateway import request_pool
from ltrain_train.gateway.apis.request_limits import RequestLimits
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.request_pool import RequestPool, RequestShare

LARGE = b"x" * (request_pool.INLINE_BYTES + 1)


def request(body: bytes) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-length", str(len(body)).encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


def compute(body: bytes) -> float:
    """Compute for 0.05 s, and return the monotonic seconds of the start."""
    began, until = time.monotonic(), time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    return began


async def starts(share: RequestShare, other: RequestShare) -> list[float]:
    """Return when two requests of an attempt, and then one of another, were parsed."""
    pool, found = RequestPool(RequestLimits()), []
    for each in (share, other, share):
        with await pool.read(request(LARGE), each) as held:
            found.append(await held.parse(compute))
            assert held.body == b""
    assert share.size == other.size == 0
    return found


def test_the_next_large_request_of_an_attempt_waits_and_others_do_not() -> None:
    share = RequestShare()
    first, other, second = asyncio.run(starts(share, RequestShare()))
    assert second - first >= 5 * 0.05
    assert other < second
    assert share.rested > time.monotonic()


def test_production_does_not_rest() -> None:
    share = RequestShare(rest=0.0)
    asyncio.run(starts(share, RequestShare(rest=0.0)))
    assert share.rested <= time.monotonic()


def test_a_request_that_waits_too_long_is_to_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_pool, "WAIT_TIMEOUT", 0.05)
    share = RequestShare(rested=time.monotonic() + 60)

    async def parse() -> None:
        with await RequestPool(RequestLimits()).read(request(LARGE), share) as held:
            await held.parse(compute)

    with pytest.raises(Refused) as refused:
        asyncio.run(parse())
    assert (refused.value.status, refused.value.retry_after) == (503, request_pool.RETRY_AFTER)
    assert share.size == 0


async def slowed(share: RequestShare, faults: int, distance: float) -> int:
    """Return how many of the faults of an agent, `distance` seconds apart, were made to wait."""
    waits = 0
    for _ in range(faults):
        await asyncio.sleep(distance)
        began = time.monotonic()
        await share.slow_down()
        waits += time.monotonic() - began >= request_pool.FAULT_PAUSE
        share.faults += 1
    return waits


def test_an_agent_whose_faults_are_apart_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_pool, "FAULT_PAUSE", 0.05)
    assert asyncio.run(slowed(RequestShare(), 30, distance=0.06)) == 0
    monkeypatch.setattr(request_pool, "FAULT_PAUSE", 0.5)
    assert asyncio.run(slowed(RequestShare(), 9, distance=0.0)) == 0
    assert asyncio.run(slowed(RequestShare(), 11, distance=0.0)) == 2


def test_more_requests_than_may_wait_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_pool, "MAX_WAITING", 2)
    monkeypatch.setattr(request_pool, "FAULT_PAUSE", 0.05)
    share = RequestShare(faults=request_pool.FREE_FAULTS + 1)

    async def ask() -> list[BaseException | None]:
        waits = [share.slow_down() for _ in range(5)]
        return await asyncio.gather(*waits, return_exceptions=True)

    outcomes = asyncio.run(ask())
    assert [getattr(each, "status", None) for each in outcomes] == [None, None, 429, 429, 429]
    assert share.waiting == 0


@pytest.mark.parametrize(
    ("body", "beside"),
    [
        (b"{}" * request_pool.INLINE_OBJECTS, False),
        (b"{}" * (request_pool.INLINE_OBJECTS + 1), True),
        (b"x" * request_pool.INLINE_BYTES, False),
        (LARGE, True),
    ],
)
def test_many_objects_are_parsed_beside_the_event_loop(body: bytes, beside: bool) -> None:
    async def parse() -> str:
        with await RequestPool(RequestLimits()).read(request(body), RequestShare()) as held:
            return await held.parse(lambda _: threading.current_thread().name)

    assert asyncio.run(parse()).startswith("ltrain-requests") is beside
