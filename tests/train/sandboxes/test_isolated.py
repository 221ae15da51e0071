"""Commands on an agent's files, as a reward runs them."""

import subprocess
from pathlib import Path

import pytest

from ltrain import run_isolated


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "left").mkdir()
    return tmp_path / "left"


def run(folder: Path, script: str) -> tuple[int, str]:
    """Return the status and the output of a program that reads 5."""
    done = run_isolated(["python", "-c", script], folder, input="5")
    return done.returncode, done.stdout


def test_a_command_writes_the_folder_and_reads_nothing_else(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.write_text("forty-two")
    script = f"""
import os, sys
open("new", "w").write(sys.stdin.read())
print(os.getcwd(), os.path.exists({str(secret)!r}), "USER" in os.environ, file=sys.stderr)
print([each for each in os.listdir("/proc") if each.isdigit()])
"""
    status, output = run(folder, script)
    assert (status, set(output.splitlines())) == (0, {"/workspace False False", "['1']"})
    assert (folder / "new").read_text() == "5"


def test_a_command_has_no_network(folder: Path) -> None:
    script = "import socket; socket.create_connection(('127.0.0.1', 1), 1)"
    assert run(folder, script)[1].endswith("refused\n")
    script = "import os; print(os.listdir('/sys/class/net') if os.path.exists('/sys') else [])"
    assert run(folder, script) == (0, "[]\n")


def test_a_command_names_more_files(folder: Path) -> None:
    (folder.parent / "cases").write_text("1\n")
    cases = folder.parent / "cases"
    assert run_isolated(["cat", str(cases)], folder).returncode == 1
    assert run_isolated(["cat", str(cases)], folder, visible=[cases]).stdout == "1\n"


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("x = bytearray(2 << 30)", "MemoryError\n"),
        ("open('large', 'wb').write(bytes(65 << 20))", "[Errno 27] File too large\n"),
        ("raise SystemExit(7)", ""),
    ],
)
def test_a_command_that_fails_has_its_status(folder: Path, script: str, end: str) -> None:
    status, output = run(folder, script)
    assert status and output.endswith(end)


def test_what_a_command_started_ends_with_its_time(folder: Path) -> None:
    script = """
import subprocess, time
subprocess.Popen(["sh", "-c", "sleep 2; touch late"])
time.sleep(60)
"""
    with pytest.raises(subprocess.TimeoutExpired):
        run_isolated(["python", "-c", script], folder, timeout=1)
    subprocess.run(["sleep", "2.5"], check=True)
    assert list(folder.iterdir()) == []
