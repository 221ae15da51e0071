"""A long request blocks no other, and all requests together stay within a memory limit."""

import asyncio
import gzip
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import http_requests
from tests.own_metrics import values
from tests.security.servers import Up, collector

from ltrain_collector.access import Keys, Role
from ltrain_collector.http import MemoryBudget
from ltrain_collector.metrics import OwnMetrics
from ltrain_collector.query import ClickHouseHttp, RoleLimits
from ltrain_collector.query import clickhouse_http as port
from ltrain_collector.query.statement import Request, Statement, parse_request
from ltrain_collector.store import Engine

MIB = 1 << 20


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with collector(tmp_path / "home") as up:
        yield up


def statement(body: bytes, **headers: str) -> Statement:
    """Parse a POST of an admin."""
    with MemoryBudget().buffer() as buffer:
        buffer.add(body)
        return parse_request(
            Request("POST", {}, headers, 1 << 30), buffer, RoleLimits.from_environment().admin
        )


def test_unpacking_a_long_body_holds_up_no_other_request(up: Up) -> None:
    blanks = gzip.compress(b"SELECT 1" + b" " * (256 * MIB) + b"\xff")
    answers: list[http_requests.Answer] = []
    packed = {"Content-Encoding": "gzip", **up.owner}

    def send() -> None:
        answers.append(http_requests.ask(up.sql, "POST", "/", blanks, packed, timeout=120))

    thread = threading.Thread(target=send)
    thread.start()
    pings = 0
    while thread.is_alive():
        assert http_requests.ask(up.sql, "GET", "/ping", timeout=120).status == 200
        pings += 1
    assert "not UTF-8" in answers[0].text
    assert pings >= 5  # one or two if the body is unpacked between two requests


def test_sql_above_the_limit_of_a_key_is_not_even_decoded(tmp_path: Path) -> None:
    key, _ = Keys(tmp_path / "home" / "store").make_key(Role.QUERY)
    headers = {"Authorization": f"Bearer {key}", "Content-Encoding": "gzip"}
    with collector(tmp_path / "home") as up:
        body = gzip.compress(b"SELECT 1 \xff" + b" FORMAT x" * MIB)
        answer = http_requests.ask(up.sql, "POST", "/", body, headers)
    assert answer.status == 400
    assert "The SQL is longer than 256 KiB" in answer.text


def test_a_format_is_looked_for_at_the_end_only() -> None:
    began = time.process_time()
    many = statement(b"SELECT 1" + b" FORMAT x" * (4 * MIB) + b" ;; \n")
    assert time.process_time() - began < 2
    assert (many.form, many.sql.count("FORMAT")) == ("x", 4 * MIB - 1)
    assert statement(b"SELECT 1\nformat CSV ;\n").form == "CSV"
    assert statement(b"SELECT 1;").sql == "SELECT 1"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "lz4"])
def test_a_body_of_several_members_is_decompressed_in_steps(encoding: str) -> None:
    plain = b"SELECT '" + b"x" * (150 * MIB) + b"'"
    packed = pack(plain[: 130 * MIB], encoding) + pack(plain[130 * MIB :], encoding)
    assert statement(packed, **{"content-encoding": encoding}).sql == plain.decode()


def pack(plain: bytes, encoding: str) -> bytes:
    from ltrain_collector.query.compression import choose_packer

    _, packs = choose_packer(encoding)
    return packs.compress(plain) + packs.flush()


class Client:
    """A request over ASGI whose body arrives when the test sends it."""

    def __init__(self, *parts: bytes, **headers: str) -> None:
        self._parts = list(parts)
        self.last = asyncio.Event()
        self.sent: list[Any] = []
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }

    async def receive(self) -> Any:
        if len(self._parts) == 1:
            await self.last.wait()
        if not self._parts:
            await asyncio.Event().wait()
        part = self._parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self._parts)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


def test_bodies_are_counted_as_received_and_as_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "MAX_REQUEST_BYTES", 8 * MIB)
    engine = Engine(tmp_path / "store")
    try:
        asyncio.run(_crowd(engine, Keys(tmp_path / "store")))
    finally:
        engine.close()


async def _crowd(engine: Engine, keys: Keys) -> None:
    metrics = OwnMetrics()
    facade = ClickHouseHttp(engine, keys, RoleLimits.from_environment(), metrics.meter)
    key = f"Bearer {keys.make_key(Role.ADMIN)[0]}"
    first = Client(b"SELECT 1", b" " * (5 * MIB), b"", authorization=key)
    reading = asyncio.create_task(facade(first.scope, first.receive, first.send))
    while len(first._parts) > 1 and not reading.done():
        await asyncio.sleep(0)
    second = Client(b"SELECT 1", b" " * (5 * MIB), b"", authorization=key)
    await asyncio.wait_for(facade(second.scope, second.receive, second.send), 60)
    bomb = Client(gzip.compress(b" " * (64 * MIB)), content_encoding="gzip", authorization=key)
    bomb.last.set()
    await asyncio.wait_for(facade(bomb.scope, bomb.receive, bomb.send), 60)
    first.last.set()
    await asyncio.wait_for(reading, 60)
    assert [each.status for each in (first, second, bomb)] == [400, 503, 503]
    assert b"Max query size exceeded" in first.sent[1]["body"]
    assert b"try again" in second.sent[1]["body"]
    assert values(metrics.samples())["queries_refused_total", "bytes"] == 2
    again = Client(b"SELECT 1" + b" " * (7 * MIB), authorization=key)
    again.last.set()
    await asyncio.wait_for(facade(again.scope, again.receive, again.send), 60)
    assert again.status == 400
