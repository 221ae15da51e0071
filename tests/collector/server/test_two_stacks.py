"""Two stacks with two homes on one machine; commands and agents have only LTRAIN_HOME."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.fork_server import ltrain_command

AGENT = """
import sys
from opentelemetry import trace
with trace.get_tracer("agent").start_as_current_span(sys.argv[1]):
    pass
"""
VARIABLES = ("LTRAIN_", "OTEL_")


def environment(home: Path) -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(VARIABLES)}
    return {**inherited, "LTRAIN_HOME": str(home)}


def free_base() -> int:
    """Return a port with which five consecutive ones are free."""
    for base in range(20_000 + os.getpid() % 1000 * 10, 60_000, 10):
        with suppress(OSError), ExitStack() as stack:
            for port in range(base, base + 5):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return base
    raise AssertionError("no five ports are free")


def start(home: Path, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [ltrain_command(), "up", *options],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(home),
    )
    assert process.stdout
    assert process.stdout.readline().startswith("ltrain: store ready")
    return process


def ltrain(home: Path, *arguments: str) -> str:
    command = [ltrain_command(), *arguments]
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, int]]:
    """Run two stacks; return the base of the ports of each home."""
    bases: dict[Path, int] = {}
    with ExitStack() as stack:
        for name in ("one", "two"):
            home, base = tmp_path_factory.mktemp(name) / "home", free_base()
            bases[home] = base
            process = stack.enter_context(start(home, "--port-base", str(base)))
            stack.callback(process.send_signal, signal.SIGTERM)
        yield bases


def test_an_agent_and_sql_use_the_stack_of_their_home(stacks: dict[Path, int]) -> None:
    launcher = Path(sys.executable).with_name("opentelemetry-instrument")
    for home in stacks:
        command = [str(launcher), sys.executable, "-c", AGENT, home.parent.name]
        subprocess.run(command, env=environment(home), check=True, timeout=120)
    for home in stacks:
        query = "SELECT SpanName FROM otel.spans WHERE ScopeName = 'agent'"
        name = f'"{home.parent.name}"'
        assert ltrain(home, "sql", query, "--format", "csv").split() == ['"SpanName"', name]


def test_the_gateway_and_the_pages_have_ports_of_their_home(stacks: dict[Path, int]) -> None:
    for home, base in stacks.items():
        assert f"http://127.0.0.1:{base + 3}" in ltrain(home, "doctor")
        with socket.create_server(("127.0.0.1", base + 4)):
            assert f"Port {base + 4} on 127.0.0.1 is taken" in ltrain(home, "ui")
        with socket.create_server(("127.0.0.1", base + 3)):
            assert f"Port {base + 3} of 127.0.0.1" in ltrain(
                home, "serve", "--upstream", "http://x"
            )


def test_a_port_of_its_own_replaces_that_of_the_base(tmp_path: Path) -> None:
    base = free_base()
    with start(tmp_path, "--port-base", str(base), "--http-port", "0") as up:
        assert f"http://127.0.0.1:{base}/v1/traces" in ltrain(tmp_path, "doctor")
        assert f"127.0.0.1:{base + 2}" not in ltrain(tmp_path, "doctor")
        up.send_signal(signal.SIGTERM)


def test_a_stack_that_has_ended_is_not_found(tmp_path: Path) -> None:
    with start(tmp_path, "--port-base", str(free_base())) as up:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
    assert list((tmp_path / "addresses").iterdir()) == []


def test_a_folder_outside_the_home_has_the_secret_of_the_home(tmp_path: Path) -> None:
    home, store = tmp_path / "home", tmp_path / "elsewhere" / "store"
    with start(home, "--dir", str(store), "--port-base", str(free_base())) as up:
        assert "had every step" in ltrain(home, "store", "migrate")  # its owner's key
        up.send_signal(signal.SIGTERM)
    assert store.with_name("store.secret").exists()
    assert not (home / "store.secret").exists()
