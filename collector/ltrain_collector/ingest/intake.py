"""The one way of an OTLP request into the store, whatever brought it.

Its body is decoded off the event loop, its rows wait for company, and it is answered once they are
readable.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from google.protobuf.message import Message

from ltrain_collector import schema
from ltrain_collector.engine import Engine
from ltrain_collector.ingest.budget import WAITING_BYTES, Arrival, Budget
from ltrain_collector.ingest.commit import WINDOW, GroupCommit
from ltrain_collector.ingest.counters import Counters, SignalCounters, TableCounters
from ltrain_collector.ingest.inflate import inflate
from ltrain_collector.ingest.refusals import Refusal
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.ingest.signals import SIGNALS, Signal

BODY = 64 << 20
"""Bytes of one request, once unpacked: what OpenTelemetry's exporters send at most."""

JSON_BODY = 16 << 20
"""The same for JSON, which is many times as large in memory."""

BODY_SECONDS = 10.0
"""Seconds that a body may take to come: OpenTelemetry's exporters give up after as many."""

READY = 1
"""Seconds after which a client that was refused is asked to come back."""

LARGE = 4 << 20
"""Bytes as they came from which a request is decoded in a lane of its own, where it may take its
time; of JSON, and of what is packed, an eighth."""


class Intake:
    """What both receivers hand requests to; lives in one event loop."""

    def __init__(self, engine: Engine, window: float = WINDOW, limit: int = WAITING_BYTES) -> None:
        self._engine = engine
        self.budget = Budget(limit)
        self.counters = Counters(
            {signal.name: SignalCounters() for signal in SIGNALS},
            {table: TableCounters() for table in schema.WRITTEN},
        )
        self._commits = {
            table: GroupCommit(partial(self._insert, table), window, counters=counters)
            for table, counters in self.counters.tables.items()
        }
        self._writers: list[asyncio.Task[None]] = []
        self._lanes = {
            large: ThreadPoolExecutor(1, "ltrain-decode-large" if large else "ltrain-decode")
            for large in (False, True)
        }

    async def take(
        self,
        signal: Signal,
        arrival: Arrival,
        encoding: str = "",
        as_json: bool = False,
        grant: object | None = None,
    ) -> Message:
        """Store a request and give its answer; `grant` is what its client may claim.

        Raises:
            Refusal: when it is not stored.
        """
        self._start()
        large = arrival.size * (8 if as_json or encoding else 1) > LARGE
        work = partial(_rows, signal, arrival, encoding, as_json, grant)
        rows = await asyncio.get_running_loop().run_in_executor(self._lanes[large], work)
        commits = (self._commits[table].commit(block) for table, block in rows.blocks.items())
        told = await asyncio.gather(*commits, return_exceptions=True)
        for error in told:
            if isinstance(error, BaseException):
                raise error
        counters = self.counters.signals[signal.name]
        counters.requests += 1
        counters.accepted += rows.count
        counters.rejected += rows.rejected
        counters.lag.add(arrival.age)
        return signal.answer(rows)

    def refuse(self, signal: Signal, refusal: Refusal) -> None:
        """Count a request that was not taken."""
        self.counters.signals[signal.name].refused[refusal.reason] += 1

    def health(self) -> dict[str, Any]:
        """Give the counters as `/health` says them."""
        tables = self.counters.tables.values()
        signals = {
            name: {
                "requests": of.requests,
                "accepted": of.accepted,
                "rejected": of.rejected,
                "refused": dict(of.refused),
            }
            for name, of in self.counters.signals.items()
        }
        return {
            "status": "ok",
            "requests": sum(of.requests for of in self.counters.signals.values()),
            **signals,
            "inserts": sum(of.inserts for of in tables),
            "failures": sum(of.failures for of in tables),
            "waiting_bytes": self.budget.waiting,
        }

    def _start(self) -> None:
        if not self._writers:
            self._writers = [asyncio.create_task(one.run()) for one in self._commits.values()]

    def _insert(self, table: str, payloads: list[bytes]) -> None:
        self._engine.insert(f"INSERT INTO {schema.into(table)}", "RowBinary", payloads)


def _rows(
    signal: Signal, arrival: Arrival, encoding: str, as_json: bool, grant: object | None
) -> Rows:
    body = arrival.body()
    plain = inflate(body, encoding, JSON_BODY if as_json else BODY)
    if plain is not body:
        arrival.hold(len(body) + len(plain))
    rows = signal.rows(plain, as_json, grant)
    arrival.hold(rows.size)
    return rows
