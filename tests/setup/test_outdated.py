"""`make outdated` compares the locks with the index that pip is configured for."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from setup import outdated

ROOT = Path(__file__).parents[2]
RELEASES = {
    "steady": ["1.0", "1.1"],
    "moved": ["1.9", "1.10", "2.0rc1"],
    "beta": ["0.65b0", "0.66b0", "0.67b0"],
    "built": ["2.13.0", "2.14.0"],
    "two-names": ["3.0"],
}
"""The files of a fake index: package -> versions."""


class Index(BaseHTTPRequestHandler):
    """Answers as the simple index of PyPI."""

    def do_GET(self) -> None:
        name = self.path.strip("/").removeprefix("simple/")
        files = [
            f"{name.replace('-', '_')}-{each}-py3-none-any.whl" for each in RELEASES.get(name, [])
        ]
        page = "".join(f'<a href="/files/{file}">{file}</a>' for file in files).encode()
        self.send_response(200 if files else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *arguments: object) -> None:
        """Write nothing to stderr."""


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    Thread(target=server.serve_forever, daemon=True).start()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield
    server.shutdown()
    server.server_close()


def write_lock(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.lock"
    path.write_text(text)
    return path


def test_pins_with_a_newer_release_are_listed_with_their_locks(tmp_path: Path) -> None:
    first = write_lock(
        tmp_path,
        "first",
        "# a comment\nsteady==1.1\nmoved==1.9  # with a reason\nbeta==0.66b0\n"
        "built==2.14.0+cpu\nTwo.Names==2.0\nabsent==1.0\n",
    )
    second = write_lock(tmp_path, "second", "moved==1.9\nbuilt==2.13.0+cpu\nsteady==1.0\n")
    assert outdated.find_outdated([first, second]) == [
        outdated.Outdated("beta", "0.66b0", "0.67b0", "first.lock"),
        outdated.Outdated("built", "2.13.0+cpu", "2.14.0", "second.lock"),
        outdated.Outdated("moved", "1.9", "1.10", "first.lock, second.lock"),
        outdated.Outdated("steady", "1.0", "1.1", "second.lock"),
        outdated.Outdated("two-names", "2.0", "3.0", "first.lock"),
    ]


def test_the_table_has_a_column_a_field() -> None:
    rows = [outdated.Outdated("moved", "1.9", "1.10", "first.lock, second.lock")]
    assert outdated.format_table(rows).splitlines() == [
        "package  locked  newest  lock file",
        "moved    1.9     1.10    first.lock, second.lock",
    ]


def test_the_command_reads_the_locks_of_the_project() -> None:
    """The fake index has none of these packages, so no release is newer."""
    command = [sys.executable, "-m", "setup.outdated", "trl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Every locked package is the newest release.\n"


def test_an_unknown_lock_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"Unknown environment 'mian'. Choose from: examples, "):
        outdated.main(["mian"])
