"""The one way of an OTLP request into the store, whatever brought it.

Its body is decoded off the event loop, its rows wait for company, and it is answered once they are
readable.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from google.protobuf.message import Message

from ltrain_collector import schema
from ltrain_collector.engine import Engine
from ltrain_collector.grants import Grant
from ltrain_collector.ingest.budget import WAITING_BYTES, Arrival, Budget
from ltrain_collector.ingest.commit import WINDOW, GroupCommit
from ltrain_collector.ingest.counters import Counters, SignalCounters, TableCounters
from ltrain_collector.ingest.inflate import inflate
from ltrain_collector.ingest.refusals import Refusal
from ltrain_collector.ingest.repeats import Repeated
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.ingest.signals import METRICS, SIGNALS, Signal

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
        self._repeated = Repeated()
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
        grant: Grant | None = None,
    ) -> Message:
        """Store a request and give its answer; `grant` is what its client may claim.

        Raises:
            Refusal: when it is not stored.
        """
        self._start()
        large = arrival.size * (8 if as_json or encoding else 1) > LARGE
        work = partial(_rows, signal, arrival, encoding, as_json, grant)
        lane = self._lanes[large]
        rows, digest = await asyncio.get_running_loop().run_in_executor(lane, work)
        await self._commit(rows)
        counters = self.counters.signals[signal.name]
        counters.requests += 1
        counters.accepted += rows.count
        counters.doubled += rows.count if self._repeated.add(digest) else 0
        counters.rejected += rows.rejected
        counters.lag.add(arrival.age)
        return signal.answer(rows)

    async def keep(self, metrics: Message) -> None:
        """Store the collector's own measures, counted nowhere: else each round would make the next.

        Raises:
            QueryFailed: when the engine refuses them.
        """
        for table, block in METRICS.local(metrics).blocks.items():
            await asyncio.to_thread(self._insert, table, [block.payload])

    def refuse(self, signal: Signal, refusal: Refusal) -> None:
        """Count a request that was not taken."""
        self.counters.signals[signal.name].refused[refusal.reason] += 1

    async def _commit(self, rows: Rows) -> None:
        commits = [self._commits[table].commit(block) for table, block in rows.blocks.items()]
        if len(commits) == 1:
            await commits[0]  # as most are: without a task of its own
            return
        for error in await asyncio.gather(*commits, return_exceptions=True):
            if error:
                raise error

    def _start(self) -> None:
        if not self._writers:
            self._writers = [asyncio.create_task(one.run()) for one in self._commits.values()]

    def _insert(self, table: str, payloads: list[bytes]) -> None:
        self._engine.insert(f"INSERT INTO {schema.into(table)}", "RowBinary", payloads)


def _rows(
    signal: Signal, arrival: Arrival, encoding: str, as_json: bool, grant: Grant | None
) -> tuple[Rows, int]:
    body = arrival.body()
    plain = inflate(body, encoding, JSON_BODY if as_json else BODY)
    if plain is not body:
        arrival.hold(len(body) + len(plain))
    rows = signal.rows(plain, as_json, grant)
    arrival.hold(rows.size)
    return rows, hash((signal.name, body))
