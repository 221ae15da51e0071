"""Control characters in a trace are shown in a terminal, never executed."""

import os
import pty
import subprocess

import polars as pl
import pytest
from tests.fork_server import ltrain_command

from ltrain_collector.store import Store

STEERING = "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\u202egnp.exe\u2069\r"
CONTROLS = [each.encode() for each in ("\x1b", "\x07", "\x9b", "\u202e", "\u2069", "\x0c")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    dsn = f"chdb://{tmp_path_factory.mktemp('terminal')}/store"
    with Store.open(dsn) as store:
        store.migrate()
        store.command("CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a")
        store.insert("t", pl.DataFrame({"a": [f"before {STEERING} after [red]x[/]"]}))
    return dsn


def on_a_terminal(*argv: str) -> bytes:
    """Run `ltrain` with a terminal as its output, and return everything written to it."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "dumb", "COLUMNS": "200", "NO_COLOR": "1"}
    process = subprocess.Popen([ltrain_command(), *argv], stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    found = b""
    try:
        while part := os.read(ours, 1 << 16):
            found += part
    except OSError:  # the end of a terminal whose program has left
        pass
    os.close(ours)
    process.wait(120)
    return found


@pytest.mark.parametrize(
    "form", ["table", "json", "csv", "tsv", "Vertical", "TSVRaw", "LineAsString"]
)
def test_a_terminal_gets_no_control_sequence(store: str, form: str) -> None:
    shown = on_a_terminal("sql", "SELECT a FROM t", "--store", store, "--format", form)
    assert b"before" in shown and b"after [red]x[" in shown
    assert [each for each in CONTROLS if each in shown] == []


def test_an_error_quotes_no_control_sequence(store: str) -> None:
    shown = on_a_terminal("sql", "SELECT toInt64(a) FROM t", "--store", store)
    assert b"ltrain: " in shown
    assert [each for each in CONTROLS if each in shown] == []


def test_a_column_has_a_name_without_control_sequences(store: str) -> None:
    shown = on_a_terminal("sql", "SELECT 1 AS `\x1b[2J`", "--store", store)
    assert b"u001b[2J" in shown
    assert b"\x1b[2J" not in shown


def test_a_pipe_gets_what_is_stored(store: str) -> None:
    argv = ("sql", "SELECT a FROM t", "--store", store, "--format", "TSVRaw")
    done = subprocess.run([ltrain_command(), *argv], capture_output=True, timeout=120)
    assert STEERING.encode() in done.stdout
