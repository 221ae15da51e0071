"""Leases of instances that run: their addresses, their environment, their ends and restarts."""

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from ltrain_train.attempt_services import Lease, ServiceFailed, ServicePool
from ltrain_transforms.recipe import Service

Start = Callable[..., ServicePool]
Make = Callable[..., Service]


def acquire(pool: ServicePool) -> Lease:
    """Wait for a lease."""
    until = time.monotonic() + 60
    while (lease := pool.acquire()) is None and time.monotonic() < until:
        time.sleep(0.02)
    assert lease is not None
    return lease


def visit(lease: Lease, path: str = "", name: str = "db") -> dict[str, Any]:
    with urllib.request.urlopen(f"{lease.addresses[name]}/{path}", timeout=30) as response:
        return dict(json.load(response))


def wait_dead(pid: int) -> None:
    until = time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not psutil.pid_exists(pid)


def assert_ended(lease: Lease) -> None:
    fault = lease.find_fault()
    assert fault is not None and "its service db-1 ended meanwhile" in fault.reason


def test_instances_have_ports_folders_and_logs_of_their_own(
    pool: Start, service: Make, home: Path
) -> None:
    started = pool(service(count=2))
    leases = [acquire(started), acquire(started)]
    environs = [visit(lease)["environ"] for lease in leases]
    assert len({lease.addresses["db"] for lease in leases}) == 2
    assert [f"http://127.0.0.1:{each['PORT']}" for each in environs] == [
        lease.addresses["db"] for lease in leases
    ]
    assert len({each["LTRAIN_SERVICE_FOLDER"] for each in environs}) == 2
    assert sorted(path.name for path in (home / "logs" / "services").iterdir()) == [
        "db-1.log",
        "db-2.log",
    ]


def test_an_instance_serves_one_attempt_at_a_time(pool: Start, service: Make) -> None:
    started = pool(service())
    first = acquire(started)
    assert started.acquire() is None
    assert first.find_fault() is None
    visit(first, "count")
    first.release()
    second = acquire(started)
    assert second.addresses == first.addresses
    assert visit(second)["visits"] == 1


def test_attempts_share_the_instances_of_a_service_of_the_run(pool: Start, service: Make) -> None:
    started = pool(service(per="run", count=2))
    until, used = time.monotonic() + 60, [acquire(started)]
    while len({lease.addresses["db"] for lease in used}) < 2 and time.monotonic() < until:
        time.sleep(0.02)
        used.append(acquire(started))
    for lease in used:
        lease.release()
    leases = [acquire(started) for _ in range(4)]
    addresses = [lease.addresses["db"] for lease in leases]
    assert [addresses.count(address) for address in set(addresses)] == [2, 2]


def test_an_attempt_gets_one_instance_of_each_service_or_waits(pool: Start, service: Make) -> None:
    started = pool(service(count=2), service(name="web", address="ws://127.0.0.1:{port}/x"))
    lease = acquire(started)
    assert lease.addresses["web"].startswith("ws://127.0.0.1:")
    assert lease.addresses.keys() == {"db", "web"}
    assert started.acquire() is None
    lease.release()
    acquire(started)


def test_a_fresh_instance_starts_again_after_each_attempt(pool: Start, service: Make) -> None:
    started = pool(service(fresh=True))
    first = acquire(started)
    pid, folder = visit(first)["pid"], visit(first, "count")["environ"]["LTRAIN_SERVICE_FOLDER"]
    assert first.find_fault() is None
    first.release()
    second = acquire(started)
    assert visit(second)["visits"] == 0
    assert visit(second)["pid"] != pid
    assert second.addresses != first.addresses
    assert not Path(folder).exists()


def test_a_killed_instance_is_a_fault_and_starts_again(pool: Start, service: Make) -> None:
    started = pool(service())
    first = acquire(started)
    os.kill(visit(first)["pid"], signal.SIGKILL)
    assert_ended(first)
    first.release()
    second = acquire(started)
    assert second.find_fault() is None
    assert_ended(first)


def test_an_instance_that_is_not_healthy_after_an_attempt_starts_again(
    pool: Start, service: Make, folder: Path
) -> None:
    started = pool(service(command="rm -f unhealthy; exec python program.py"))
    first = acquire(started)
    pid = visit(first)["pid"]
    (folder / "unhealthy").touch()
    assert first.find_fault() is None
    first.release()
    assert visit(acquire(started))["pid"] != pid


def test_a_service_gets_no_secret(
    pool: Start, service: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["LTRAIN_STORE_SECRET", "LTRAIN_GATEWAY_SECRET", "OTEL_EXPORTER_OTLP_HEADERS", "MINE"]
    for name in names:
        monkeypatch.setenv(name, "Authorization=Bearer%20secret")
    monkeypatch.setenv("HARMLESS", "1")
    environ = visit(acquire(pool(service(), secrets=["MINE"])))["environ"]
    assert environ["HARMLESS"] == "1"
    assert not environ.keys() & {*names, "LTRAIN_HOME"}


def test_a_command_checks_the_health(pool: Start, service: Make, folder: Path) -> None:
    command = "test -e $LTRAIN_SERVICE_FOLDER/visits"
    program = "echo x >$LTRAIN_SERVICE_FOLDER/visits; exec python program.py"
    started = pool(service(health=command, command=program))
    assert acquire(started).find_fault() is None


def test_the_open_port_checks_the_health(pool: Start, service: Make) -> None:
    lease = acquire(pool(service(health="tcp")))
    assert visit(lease)["visits"] == 0


@pytest.fixture
def used_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-program --port 1", "service db-1 ended with exit status 127"),
        ("echo starting; exit 3", "ended with exit status 3.*\nstarting\n"),
    ],
)
def test_a_service_that_dies_at_its_start_fails_with_its_log(
    pool: Start, service: Make, command: str, message: str
) -> None:
    with pytest.raises(ServiceFailed, match=message) as failure:
        acquire(pool(service(command=command)))
    assert "It died 3 times without serving an attempt." in str(failure.value)


def test_a_service_whose_own_port_is_in_use_fails_with_its_log(
    pool: Start, service: Make, used_port: int
) -> None:
    with pytest.raises(ServiceFailed, match="Address already in use"):
        acquire(pool(service(command=f"exec python program.py {used_port}")))


def test_a_service_that_never_becomes_healthy_fails_at_once(pool: Start, service: Make) -> None:
    keys = {"command": "exec sleep 600", "health": "echo not yet; exit 1", "start_timeout": 1}
    with pytest.raises(ServiceFailed, match="was not ready after 1 s") as failure:
        acquire(pool(service(**keys)))
    assert "not yet" in str(failure.value)
    assert "It must listen at port $LTRAIN_SERVICE_PORT of 127.0.0.1, here 6" in str(failure.value)
    assert "Its health check is 'echo not yet; exit 1'; start_timeout sets" in str(failure.value)


def test_a_service_that_dies_in_every_attempt_fails(pool: Start, service: Make) -> None:
    started = pool(service())
    with pytest.raises(ServiceFailed, match="ended by signal SIGKILL"):
        for _ in range(4):
            lease = acquire(started)
            os.kill(visit(lease)["pid"], signal.SIGKILL)
            assert lease.find_fault()
            lease.release()


def test_attempts_that_are_served_reset_the_count_of_deaths(pool: Start, service: Make) -> None:
    started = pool(service())
    for _ in range(4):
        served = acquire(started)
        assert served.find_fault() is None
        served.release()
        lease = acquire(started)
        os.kill(visit(lease)["pid"], signal.SIGKILL)
        assert lease.find_fault()
        lease.release()
    acquire(started)


def test_nothing_is_left_of_a_closed_pool(pool: Start, service: Make) -> None:
    started = pool(service(count=2, command="python program.py"))
    visits = [visit(acquire(started)) for _ in range(2)]
    started.close()
    for each in visits:
        wait_dead(each["pid"])
        assert not Path(each["environ"]["LTRAIN_SERVICE_FOLDER"]).exists()
