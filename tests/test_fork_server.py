"""A fork of the server behaves as the real command."""

import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.fork_server import LTRAIN, forked, ltrain_command

UP = ("up", "--otlp-port", "0", "--grpc-port", "0", "--http-port", "0", "--dir")
RECIPE = (
    '[source]\nrun = "a"\n[[policy]]\nname = "p"\n[[reward]]\nname = "r"\nevaluation = "reward"\n'
)


def both(folder: Path, *arguments: str, stdin: str = "", **variables: str) -> None:
    """Check that the fork and the real command have the same exit status and output."""
    results = []
    for command in (str(LTRAIN), ltrain_command()):
        done = subprocess.run(
            [command, *arguments],
            cwd=folder,
            env={**os.environ, "COLUMNS": "100", **variables},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )
        results.append((done.returncode, done.stdout, done.stderr))
    assert results[0] == results[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("--help",),
        ("sql", "--help"),
        ("sql",),
        ("rules", "missing.toml"),
        ("build", "ltrain.toml"),
        ("show", "demo", "--store", "chdb:///missing/store"),
        ("no-command",),
    ],
    ids=" ".join,
)
def test_status_and_output_are_those_of_the_command(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "ltrain.toml").write_text(RECIPE)
    both(tmp_path, *arguments)


def test_a_client_that_reads_late_gets_process_and_status_apart(tmp_path: Path) -> None:
    request = [["--version"], str(tmp_path), dict(os.environ), os.getpgrp(), 0o022]
    body = marshal.dumps(request)
    with socket.socket(socket.AF_UNIX) as client, open(os.devnull, "r+b") as null:
        client.connect(str(Path(ltrain_command()).parent / "socket"))
        socket.send_fds(client, [len(body).to_bytes(8, "big")], [null.fileno()] * 3)
        client.sendall(body)
        end = time.monotonic() + 60
        while len(client.recv(64, socket.MSG_PEEK)) < 32 and time.monotonic() < end:
            time.sleep(0.05)
        assert int(client.recv(16)) > 1
        assert int(client.recv(16)) == 0


@contextmanager
def stopped_server() -> Iterator[str]:
    """Stop the server of this process, which then sees at once what happens meanwhile."""
    address = str(Path(ltrain_command()).parent / "socket")
    [server] = [each for each in psutil.Process().children() if address in each.cmdline()]
    server.suspend()
    try:
        yield address
    finally:
        server.resume()


@pytest.mark.parametrize("sent", ["nothing", "header", "all"])
def test_the_server_outlives_a_client_that_is_killed(tmp_path: Path, sent: str) -> None:
    body = marshal.dumps([["--version"], str(tmp_path), dict(os.environ), os.getpgrp(), 0o022])
    with (
        stopped_server() as address,
        socket.socket(socket.AF_UNIX) as client,
        open(os.devnull, "r+b") as null,
    ):
        client.connect(address)
        if sent != "nothing":
            socket.send_fds(client, [len(body).to_bytes(8, "big")], [null.fileno()] * 3)
        if sent == "all":
            client.sendall(body)
    both(tmp_path, "--version")


@pytest.mark.parametrize("first", ["command", "executable"])
def test_the_server_outlives_a_command_that_is_killed_with_its_executable(
    tmp_path: Path, first: str
) -> None:
    with started(tmp_path / "store") as (up, command):
        with stopped_server():
            for process in (command, up) if first == "command" else (up, command):
                process.kill()
                time.sleep(0.1)  # the server sees them in this order
        assert gone(command)
    both(tmp_path, "--version")


def test_the_environment_and_the_input_are_those_of_the_caller(tmp_path: Path) -> None:
    both(tmp_path, "traces", LTRAIN_STORE="chdb:///missing/store")
    both(tmp_path, "traces", LTRAIN_STORE="nonsense")
    both(
        tmp_path, "score", "run", "--scores", "-", stdin="{}", LTRAIN_STORE="chdb:///missing/store"
    )


def test_a_command_with_other_variables_of_python_is_a_real_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [ltrain_command(), "--version"],
        env={**os.environ, "PYTHONVERBOSE": "1"},
        capture_output=True,
        text=True,
    )
    assert "import 'ltrain.cli'" in done.stderr


@contextmanager
def started(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", psutil.Process]]:
    """Start `ltrain up` as a fork; yield the executable's process and that of the command."""
    argv = [ltrain_command(), *UP, str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None and "OTLP" in up.stdout.readline()
        yield up, psutil.Process(forked(up.pid))


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGQUIT, -3)]
)
def test_signals_reach_the_command(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with started(tmp_path / "store") as (up, command):
        up.send_signal(number)
        assert up.wait(60) == status
        assert gone(command)


def test_a_killed_executable_ends_its_command(tmp_path: Path) -> None:
    with started(tmp_path / "store") as (up, command):
        up.kill()
        assert gone(command)


def test_a_killed_command_ends_its_executable_by_the_same_signal(tmp_path: Path) -> None:
    with started(tmp_path / "store") as (up, command):
        command.kill()
        assert up.wait(60) == -signal.SIGKILL


def gone(process: psutil.Process) -> bool:
    """Return whether the process ends within a minute."""
    deadline = time.monotonic() + 60
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_the_server_ends_with_its_process(tmp_path: Path) -> None:
    code = "import runpy, os; namespace = runpy.run_path(%r); print(namespace['ltrain_command']())"
    file = str(Path(__file__).with_name("fork_server.py"))
    killed = code % file + "; import sys; sys.stdout.flush(); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", killed], capture_output=True, text=True)
    executable = done.stdout.strip()
    deadline = time.monotonic() + 60
    while subprocess.run([executable, "--version"], capture_output=True).returncode == 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
