"""`ltrain ui` beside a run: its link, its port, and its end."""

import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.http_requests import ask
from typer.testing import CliRunner

from ltrain_instrument.machine import is_running
from ltrain_train.cli import app
from ltrain_train.processes import is_port_open
from ltrain_train.processes.pages import serve_pages

KILLED = """
import os, sys
from pathlib import Path
from ltrain_train.processes.pages import serve_pages
home = Path(sys.argv[1])
with serve_pages(home, "http://127.0.0.1:1", home / "ltrain.toml", (), print):
    os.kill(os.getpid(), 9)
"""


def port_of(sentence: str) -> int:
    found = re.match(r"Pages: (http://127\.0\.0\.1:\d+/#\S+) \(signs browsers in", sentence)
    assert found is not None, sentence
    return urlsplit(found[1]).port or 0


def test_pages_are_served_in_the_block_also_where_the_port_is_taken(tmp_path: Path) -> None:
    sentences = list[str]()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # another program has it: that is the same
            taken.bind(("127.0.0.1", 8484))
            taken.listen()
        store = "http://reader:secret@127.0.0.1:1"
        with serve_pages(tmp_path, store, tmp_path / "ltrain.toml", (), sentences.append):
            port = port_of(sentences[0])
            assert port != 8484
            assert ask(port, "GET", "/").status == 401
            commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True)
            assert "reader:secret" not in commands.stdout
        assert not is_port_open(port)
    assert len(sentences) == 1


def test_pages_end_with_a_killed_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert killed.returncode == -9
    log = (tmp_path / "logs" / "ui.log").read_text()
    found = re.search(r"127\.0\.0\.1:(\d+)/#", log)
    assert found is not None
    with socket.socket() as waiting:
        waiting.settimeout(1)
        while waiting.connect_ex(("127.0.0.1", int(found[1]))) == 0:
            pass


def test_a_run_goes_on_without_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = list[str]()
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # no Python can start
    with serve_pages(tmp_path, "", tmp_path / "ltrain.toml", (), sentences.append):
        pass
    [sentence] = sentences
    assert sentence.startswith("No pages are served: ltrain ui ended")


def test_pages_are_for_online_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ltrain.toml").write_text(
        '[[policy]]\nname = "sql"\n[[reward]]\nname = "r"\nevaluation = "r"\n'
    )
    for options in (["--once"], ["--watch"], []):
        result = CliRunner().invoke(app, ["run", *options, "--ui"])
        assert result.exit_code == 2 and "online run" in result.output
    assert is_running(os.getpid())
