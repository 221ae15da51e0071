"""Start `ltrain up` and `ltrain serve` as a user does, on free ports, for tests of attacks."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.empty_store import copy_empty_store
from tests.fork_server import ltrain_command
from tests.http_requests import Answer, ask
from tests.train.gateway.conftest import write_model
from tests.up import FREE, STARTS_S, start_collector, start_server

from ltrain_collector.access import sign_owner, store_secret


@dataclass(frozen=True, slots=True)
class Up:
    """A running `ltrain up`."""

    process: subprocess.Popen[str]
    home: Path
    otlp: int
    grpc: int
    sql: int

    @property
    def dsn(self) -> str:
        """The address as any program of this machine knows it."""
        return f"http://127.0.0.1:{self.sql}"

    @property
    def owner(self) -> dict[str, str]:
        """The headers of the store's owner."""
        key = sign_owner(store_secret(self.home / "store"), 3600)
        return {"Authorization": f"Bearer {key}"}

    def run(self, sql: str, method: str = "POST", **headers: str) -> Answer:
        """Run a statement as a program would."""
        return ask(self.sql, method, "/", sql, headers)

    def blocked(self, **headers: str) -> dict[str, int]:
        """Return the counts of refusals by reason, from `/metrics`."""
        text = ask(self.otlp, "GET", "/metrics", headers=headers).text
        found = re.findall(r'^ltrain_collector_blocked_total{reason="(\w+)"} (\S+)$', text, re.M)
        return {reason: int(float(count)) for reason, count in found}


@contextmanager
def collector(
    home: Path, *more: str, within: Sequence[str] = (), new: bool = False
) -> Iterator[Up]:
    """Run `ltrain up` with `home` as its LTRAIN_HOME; `within` is a command that runs it.

    If `new`, it makes the store itself; else the store of a new home is a copy of an empty one.
    """
    if not (new or within or (home / "store").exists()):
        copy_empty_store(home / "store")
    environ = {**_inherited(), "LTRAIN_HOME": str(home)}
    process, ports = start_collector(("up", *FREE, *more), environ, within, subprocess.STDOUT)
    with _ended(process):
        yield Up(process, home, *ports)


@contextmanager
def gateway(home: Path, upstream: str) -> Iterator[int]:
    """Run `ltrain serve` in front of a running policy server; yield the gateway's port."""
    command = (ltrain_command(), "serve", str(write_model(home.parent / "model")))
    argv = (*command, "--port", "0", "--upstream", upstream)
    nowhere = {"LTRAIN_HOME": str(home), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    ready = r".*gateway ready.*http://127\.0\.0\.1:(\d+)/v1"
    process, line = start_server(argv, {**_inherited(), **nowhere}, ready, subprocess.STDOUT)
    with _ended(process):
        found = re.match(ready, line)
        assert found is not None
        yield int(found[1])


def _inherited() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")}


@contextmanager
def _ended(process: "subprocess.Popen[str]") -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STARTS_S)
        finally:
            process.kill()
