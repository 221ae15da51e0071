"""Only the gateway reaches the policy server: no port serves its admin routes."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.fork_server import forked, ltrain_command

FAKE = Path(__file__).parents[1] / "fake_vllm.py"
WAIT = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.train import tiny  # torch, which takes seconds to import

    return tiny.write_model(tmp_path_factory.mktemp("model") / "tiny")


@contextmanager
def serving(home: Path, model: Path) -> Iterator[psutil.Process]:
    """Run `ltrain serve` before a fake vLLM until it is ready."""
    home.mkdir(parents=True)
    python, output = home / "python", home / "out"
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ] && exit 0\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o755)
    ours = {"LTRAIN_HOME": str(home), "LTRAIN_VLLM_PYTHON": str(python), "PYTHONUNBUFFERED": "1"}
    with output.open("wb") as writing:
        process = subprocess.Popen(
            [ltrain_command(), "serve", str(model), "--port", "0"],
            stdout=writing,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ours, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        )
    try:
        until = time.monotonic() + WAIT
        while "gateway ready" not in output.read_text():
            assert process.poll() is None and time.monotonic() < until, output.read_text()
            time.sleep(0.05)
        yield psutil.Process(forked(process.pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 0
    finally:
        process.kill()
        process.wait()


def _socket(gateway: psutil.Process) -> Path:
    """Return the path that the policy server was told to listen on."""
    for child in gateway.children(recursive=True):
        line = child.cmdline()
        if "--uds" in line and "guard.py" not in " ".join(line):
            return Path(line[line.index("--uds") + 1])
    raise AssertionError("no policy server has a socket")


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.nightly), 12])
def test_it_listens_in_a_folder_that_only_its_user_can_enter(
    tmp_path: Path, model: Path, depth: int
) -> None:
    home = tmp_path / "/".join(["a-folder"] * depth) / "home"
    with serving(home, model) as gateway:
        path = _socket(gateway)
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.parent.stat().st_uid == os.getuid()
        assert len(os.fsencode(path)) <= 107
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
    assert not path.parent.exists()


def test_only_the_gateway_has_a_port(tmp_path: Path, model: Path) -> None:
    with serving(tmp_path / "home", model) as gateway:
        children = gateway.children(recursive=True)
        assert any("fake_vllm" in " ".join(child.cmdline()) for child in children)
        for child in children:
            assert child.net_connections("inet") == []
        listening = [c.laddr.ip for c in gateway.net_connections("inet") if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]


def test_the_folder_of_a_killed_gateway_goes_too(tmp_path: Path, model: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(AssertionError), serving(home, model) as gateway:
        path = _socket(gateway)
        gateway.kill()
    until = time.monotonic() + WAIT
    while path.parent.exists():
        assert time.monotonic() < until
        time.sleep(0.05)
