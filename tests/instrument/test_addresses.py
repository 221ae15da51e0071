"""The addresses of a home are those of its running servers, whatever lies in its folder."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ltrain_instrument.addresses import FOLDER, OTLP, announce, find_address, find_port
from ltrain_instrument.settings import GATEWAY, OTLP_ENDPOINT

URL = "http://127.0.0.1:4999"
SERVER = """
import sys
from pathlib import Path
from ltrain_instrument.addresses import announce

with announce(Path(sys.argv[1]), "up", {"otlp": sys.argv[2]}):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def server(home: Path, url: str = URL) -> Iterator[subprocess.Popen[str]]:
    """Run a process that announces an address."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(home), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def file_of(home: Path) -> Path:
    return home / FOLDER / "up.json"


def test_an_address_is_found_while_its_server_runs(tmp_path: Path) -> None:
    assert find_address(tmp_path, OTLP) == ""
    with server(tmp_path) as process:
        assert find_address(tmp_path, OTLP) == URL
        assert find_port(tmp_path, OTLP, 1) == 4999
        assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600
        assert file_of(tmp_path).parent.stat().st_mode & 0o777 == 0o700
        process.communicate("")
        assert not file_of(tmp_path).exists()
    assert find_address(tmp_path, OTLP) == ""
    assert find_port(tmp_path, OTLP, 1) == 1


def test_the_address_of_a_killed_server_does_not_count(tmp_path: Path) -> None:
    with server(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert file_of(tmp_path).exists()
        assert find_address(tmp_path, OTLP) == ""
    with server(tmp_path, "http://127.0.0.1:5000"):
        assert find_address(tmp_path, OTLP) == "http://127.0.0.1:5000"


def test_a_child_does_not_keep_the_address_of_its_killed_server(tmp_path: Path) -> None:
    script = SERVER.replace('print("ready"', 'subprocess.Popen(["sleep", "60"]); print("ready"')
    command = [sys.executable, "-c", "import subprocess\n" + script, str(tmp_path), URL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        process.wait()
        assert find_address(tmp_path, OTLP) == ""
        os.kill(int(children[0]), signal.SIGKILL)


def test_the_first_server_of_a_home_keeps_its_address(tmp_path: Path) -> None:
    with server(tmp_path) as first, server(tmp_path, "http://127.0.0.1:5000") as second:
        assert find_address(tmp_path, OTLP) == URL
        _, err = second.communicate("")
        assert f"`ltrain up` of process {first.pid}" in err
        assert find_address(tmp_path, OTLP) == URL


def test_homes_have_their_own_addresses(tmp_path: Path) -> None:
    with server(tmp_path / "a"), server(tmp_path / "b", "http://127.0.0.1:5000"):
        assert find_address(tmp_path / "a", OTLP) == URL
        assert find_address(tmp_path / "b", OTLP) == "http://127.0.0.1:5000"


def test_a_variable_wins_and_an_address_replaces_the_default(tmp_path: Path) -> None:
    environ = {"LTRAIN_HOME": str(tmp_path)}
    with announce(tmp_path, "up", {OTLP: URL}):
        assert OTLP_ENDPOINT.read(environ) == URL
        assert OTLP_ENDPOINT.read({**environ, OTLP_ENDPOINT.name: "http://x"}) == "http://x"
        assert GATEWAY.read(environ) == GATEWAY.default
    assert OTLP_ENDPOINT.read(environ) == OTLP_ENDPOINT.default


def test_the_gateway_that_runs_wins_over_the_port_that_up_names(tmp_path: Path) -> None:
    environ = {"LTRAIN_HOME": str(tmp_path)}
    with announce(tmp_path, "up", {"gateway": "http://127.0.0.1:9003"}):
        assert GATEWAY.read(environ) == "http://127.0.0.1:9003"
        with announce(tmp_path, "serve", {"gateway": "http://127.0.0.1:7"}):
            assert GATEWAY.read(environ) == "http://127.0.0.1:7"


def open_to_others(home: Path) -> None:
    file_of(home).chmod(0o620)


def without_lock(home: Path) -> None:
    text = file_of(home).read_text()
    file_of(home).unlink()
    file_of(home).write_text(text)


def behind_a_link(home: Path) -> None:
    file_of(home).rename(home / "elsewhere")
    file_of(home).symlink_to(home / "elsewhere")


def of_another_machine(home: Path) -> None:
    text = file_of(home).read_text()
    file_of(home).write_text(text.replace(socket.gethostname(), "another-machine"))


def not_json(home: Path) -> None:
    file_of(home).write_text("{")


def not_an_object(home: Path) -> None:
    file_of(home).write_text("[1]")


def a_pipe(home: Path) -> None:
    file_of(home).unlink()
    os.mkfifo(file_of(home))


CHANGES = (
    *(open_to_others, without_lock, behind_a_link, of_another_machine),
    *(not_json, not_an_object, a_pipe),
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_may_be_from_others_does_not_count(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    with server(tmp_path):
        change(tmp_path)
        assert find_address(tmp_path, OTLP) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".", FOLDER, f"{FOLDER}/up.json"])
def test_a_file_or_folder_of_another_user_does_not_count(tmp_path: Path, name: str) -> None:
    with server(tmp_path):
        os.chown(tmp_path / name, 12345, 12345)
        assert find_address(tmp_path, OTLP) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_server_runs_in_a_home_of_another_user_without_an_address(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with server(tmp_path) as process:
        assert not file_of(tmp_path).exists()
        _, err = process.communicate("")
        assert "another user owns the folder" in err


def test_a_file_holds_addresses_and_no_key(tmp_path: Path) -> None:
    with announce(tmp_path, "up", {OTLP: URL}):
        content = json.loads(file_of(tmp_path).read_text())
    assert content == {OTLP: URL, "pid": os.getpid(), "host": socket.gethostname()}
