"""Rotel, a third-party collector, writes to ltrain's table with its own ClickHouse exporter."""

import random
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.collector.server.test_kill import RECORDS, begin, end, rows
from tests.http_requests import post

from ltrain_collector.access import Keys, Role
from ltrain_collector.store import Store
from ltrain_train.processes import free_port


@contextmanager
def rotel(sql: int, key: str, compression: str, log: Path) -> Iterator[int]:
    """Run Rotel in front of ClickHouse's port; yield its port of OTLP over HTTP."""
    found = find_spec("rotel")
    assert found and found.origin
    http, grpc = free_port(), free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *(str(Path(found.origin).with_name("rotel-agent")), "start"),
                *("--otlp-http-endpoint", f"127.0.0.1:{http}"),
                *("--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"),
                *("--exporter", "clickhouse", "--disable-batching"),
                *("--clickhouse-exporter-endpoint", f"http://127.0.0.1:{sql}"),
                *("--clickhouse-exporter-database", "otel"),
                *("--clickhouse-exporter-table-prefix", "otel"),
                *("--clickhouse-exporter-compression", compression),
                *("--clickhouse-exporter-user", "rotel"),
                *("--clickhouse-exporter-password", key),
            ],
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: listens(http), log)
        yield http
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(met: Any, log: Path, seconds: float = 30.0, every: float = 0.05) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, log.read_text()
        time.sleep(every)


@pytest.mark.parametrize("compression", ["lz4", pytest.param("none", marks=pytest.mark.nightly)])
def test_rotel_in_front_loses_nothing(
    tmp_path: Path, start: Any, request_of: Any, compression: str
) -> None:
    key, _ = Keys(tmp_path / "store").make_key(Role.ADMIN, "rotel")
    up = start(tmp_path / "store")
    log = tmp_path / "rotel.log"
    with (
        Store.open(f"http://reader:{key}@127.0.0.1:{up.sql}") as store,
        rotel(up.sql, key, compression, log) as port,
    ):
        for number in range(1, 21):
            ids = [(number, span) for span in range(1, 33)]
            assert post(port, request_of(*ids, ltrain__rollout__id=f"r{number:02}")).status == 200
        sql = "SELECT count() AS n, uniqExact(RolloutId) AS rollouts, any(ServiceName) AS service"
        wait_until(
            lambda: store.query(f"{sql} FROM otel.spans").rows() == [(640, 20, "agent")], log
        )
        assert store.query("SELECT count() AS n FROM otel.otel_traces")["n"].item() == 640
        store.command("SYSTEM STOP MERGES otel.otel_traces")  # they would make one of two copies
        direct = request_of((21, 1), ltrain__rollout__id="r21")
        assert post(up.otlp, direct, Authorization=f"Bearer {key}").status == 200
        assert post(port, direct).status == 200
        wait_until(lambda: copies(store, "r21") == 2, log)
        # rotel writes by SQL, where nobody records a sender
        columns = (
            "* EXCEPT (IngestedAt, ResourceAttributes), "
            "mapFilter((name, _) -> name != 'ltrain.sender', ResourceAttributes) AS resource"
        )
        sql = f"SELECT {columns} FROM otel.otel_traces WHERE RolloutId = 'r21'"
        first, second = store.query(sql).to_dicts()
        assert first == second  # what rotel writes is what we write
        assert store.query("SELECT 1 FROM otel.spans WHERE RolloutId = 'r21'").height == 1
    assert key not in log.read_text()


def copies(store: Store, rollout: str) -> int:
    sql = "SELECT count() AS n FROM otel.otel_traces WHERE RolloutId = {r:String}"
    return int(store.query(sql, {"r": rollout})["n"].item())


def test_rotel_without_a_key_is_not_let_in(tmp_path: Path, start: Any, request_of: Any) -> None:
    key, _ = Keys(tmp_path / "store").make_key(Role.ADMIN)
    query, _ = Keys(tmp_path / "store").make_key(Role.QUERY)
    up = start(tmp_path / "store")
    log = tmp_path / "rotel.log"
    with rotel(up.sql, query, "lz4", log) as port:
        assert post(port, request_of((1, 1))).status == 200  # it answers before it inserts
        wait_until(lambda: "403" in log.read_text() or "497" in log.read_text(), log)
    with Store.open(f"http://reader:{key}@127.0.0.1:{up.sql}") as store:
        assert store.query("SELECT count() AS n FROM otel.spans")["n"].item() == 0


KILLS = 5
"""More kills make Rotel's retries later: each waits twice as long as the one before."""
DROPPED = re.compile(r"dropping data.*telemetry_type: \"(\w+)\"")


@pytest.mark.nightly
def test_kill_9_behind_rotel_duplicates_nothing_and_loses_what_rotel_drops(
    tmp_path: Path, start: Any
) -> None:
    """Rotel responds before it exports, and retries only if nobody listens."""
    key, _ = Keys(tmp_path / "store").make_key(Role.ADMIN, "rotel")
    up = start(tmp_path / "store")
    log = tmp_path / "rotel.log"
    with rotel(up.sql, key, "lz4", log) as port:
        clients = begin(port, pause=0.05)
        for _ in range(KILLS):
            time.sleep(random.uniform(0.05, 0.8))
            up.stop(signal.SIGKILL)
            up = start(tmp_path / "store", up.otlp, up.sql)
        acknowledged = end(clients)
        with Store.open(f"http://reader:{key}@127.0.0.1:{up.sql}") as store:

            def accounted() -> bool:
                found, dropped = rows(store), Counter(DROPPED.findall(log.read_text()))
                return all(  # what broke off may have been stored all the same
                    len(made) - len(found[name]) <= dropped[name]
                    for name, made in acknowledged.items()
                )

            # rotel gives a request up after 300 s of retries, 30 s apart: then it is a drop
            wait_until(accounted, log, seconds=420, every=1)
            for name, found in rows(store).items():
                assert found.keys() <= acknowledged[name]
                assert set(found.values()) == {RECORDS}
