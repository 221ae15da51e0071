"""Mistakes, damaged files and unsuitable servers: each error says how to fix it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from tests.otlp import insert_otlp, open_empty_store
from typer.testing import CliRunner

from ltrain.cli import app
from ltrain_collector.errors import (
    DamagedData,
    NotMigrated,
    QueryFailed,
    StoreDamaged,
    StoreUnreachable,
    StoreUnusable,
    TooMuch,
)
from ltrain_collector.store import Store

READ = "SELECT sum(length(toString(tuple(*)))) AS n FROM otel.spans"


@pytest.fixture
def path(tmp_path: Path, request_of: Callable[..., bytes]) -> Path:
    """The closed folder of a store with a span."""
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, request_of((1, 1), long="x" * 99, ltrain__rollout__id="r"))
    return tmp_path / "store"


def part(path: Path) -> Path:
    return max(path.rglob("store/*/*/*_*_*_*/data.bin"), key=lambda each: each.stat().st_size)


def test_a_truncated_part_is_reported_on_opening_and_by_status(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part(path).write_bytes(part(path).read_bytes()[:50])
    for _ in range(2):
        caplog.clear()
        with Store.open(f"chdb://{path}") as store:
            assert store.query("SELECT count() AS n FROM otel.spans")["n"].item() == 0
        [record] = caplog.records
        text = record.getMessage()
        assert f"1 damaged part of otel.otel_traces in the store {path}" in text
        assert "`ltrain store restore BACKUP" in text


def test_changed_bytes_are_reported_by_the_query(path: Path) -> None:
    whole = part(path).read_bytes()
    part(path).write_bytes(whole[:16] + bytes(byte ^ 255 for byte in whole[16:]))
    with (
        Store.open(f"chdb://{path}") as store,
        pytest.raises(DamagedData, match=rf"{path} are damaged: Code: .*store restore"),
    ):
        store.query(READ)


@pytest.mark.parametrize("lost", ["metadata", "store"])
def test_a_store_that_lost_a_folder_is_not_created_again(path: Path, lost: str) -> None:
    shutil.rmtree(path / lost)
    with pytest.raises(
        StoreDamaged, match=r"is damaged: .* missing\. Restore a backup of `ltrain store"
    ):
        Store.open(f"chdb://{path}")


def test_a_table_that_cannot_be_read_is_reported(path: Path) -> None:
    for each in path.rglob("otel_traces.sql"):
        each.write_text("garbage")
    code = f"from ltrain_collector.store.trace_store import Store; Store.open('chdb://{path}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "StoreDamaged: The store" in done.stderr  # chDB is of no use in this process after it


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreUnusable, match=r"is not a store: it holds thesis\.tex"):
        Store.open(f"chdb://{tmp_path}")
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_result_of_ten_gigabytes_is_refused(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ltrain_collector.store.trace_store.MAX_QUERY_BYTES", 1 << 20)
    with pytest.raises(TooMuch, match=r"Store\.stream, or `ltrain sql` with --format parquet"):
        folder.query("SELECT number FROM numbers(1000000000000)")
    assert folder.query("SELECT 1 AS a")["a"].item() == 1


@pytest.fixture
def aged(up: Any) -> Iterator[str]:
    """A ClickHouse that reports an old version: `ltrain up` behind a proxy."""

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            address = f"{up.dsn}{self.path}"
            try:
                upstream = urllib.request.urlopen(urllib.request.Request(address, body))
            except HTTPError as error:
                upstream = error
            with upstream as answer:
                content = answer.read().replace(b"26.9.2.1", b"24.3.2.1")
                self.send_response(answer.status)
                for name in ("content-type", "x-clickhouse-format", "x-clickhouse-timezone"):
                    if answer.headers[name]:
                        self.send_header(name, answer.headers[name])
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_old_clickhouse_is_refused(aged: str) -> None:
    with pytest.raises(
        StoreUnreachable, match=r"is ClickHouse 24\.3\.2\.1; ltrain's views need 26\.2"
    ):
        Store.open(aged)


def test_a_server_that_was_never_migrated_says_what_to_run(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    up = start(tmp_path / "store")
    with Store.open(up.owned) as store:
        store.command("DROP DATABASE otel SYNC")
    done = CliRunner().invoke(app, ["sql", "SELECT * FROM otel.rollouts", "--store", up.dsn])
    assert isinstance(done.exception, NotMigrated)
    assert "run `ltrain store migrate`" in str(done.exception)
    home = {"LTRAIN_HOME": str(tmp_path)}
    migrated = CliRunner().invoke(app, ["store", "migrate", "--store", up.dsn], env=home)
    assert f"{up.dsn} ran 01_database" in migrated.stdout
    done = CliRunner().invoke(app, ["sql", "SELECT * FROM otel.rollouts", "--store", up.dsn])
    assert done.exit_code == 0


def ltrain(*argv: str) -> list[str]:
    return [sys.executable, "-m", "ltrain", *argv]


@pytest.mark.parametrize("form", ["csv", "jsonl", "table"])
def test_a_closed_pipe_ends_the_command_without_an_error(up: Any, form: str) -> None:
    query = f"SELECT number FROM numbers({10**11 if form != 'table' else 99999})"
    argv = ltrain("sql", query, "--format", form, "--store", up.owned)
    piped = f"exec {' '.join(map(repr, argv))} | head -n 3"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, timeout=60)
    assert (len(done.stdout.splitlines()), done.stderr) == (3, "")


def test_ctrl_c_in_the_middle_is_clean(up: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    query = "SELECT number FROM numbers(100000000000)"
    argv = ltrain("sql", query, "--format", "csv", "--out", str(target), "--store", up.owned)
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        while not (target.exists() and target.stat().st_size):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, error_output = process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert "Traceback" not in error_output


def test_parameters_and_a_file_with_the_query(folder: Store, tmp_path: Path) -> None:
    query = tmp_path / "q.sql"
    query.write_text("SELECT {a:String} AS a, {n:UInt8} + 1 AS n")
    argv = ["sql", "--file", str(query), "--json", "--store", folder.name]
    done = CliRunner().invoke(app, [*argv, "--param", "a=x=y", "--param", "n=2"])
    assert json.loads(done.stdout) == [{"a": "x=y", "n": 3}]
    wrong = CliRunner().invoke(app, [*argv, "--param", "a"])
    assert "--param a is not name=value" in str(wrong.exception)
    missing = CliRunner().invoke(app, argv)
    assert isinstance(missing.exception, QueryFailed)
    assert CliRunner().invoke(app, ["sql", "SELECT 1", "--file", str(query)]).exit_code == 2
    assert CliRunner().invoke(app, ["sql"]).exit_code == 2


def test_a_folder_without_rights_is_reported(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    code = (
        "import os\nfrom ltrain_collector.store.trace_store import Store\n"
        "os.setuid(65534)\n"
        f"Store.open('chdb://{locked}')"
    )
    if os.getuid() != 0:
        pytest.skip("only root can become somebody without rights")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "cannot be used: Permission denied" in done.stderr
