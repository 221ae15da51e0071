"""ctrl-C in `ltrain run`: it is never lost, and a second one does not break the cleanup."""

import os
import subprocess
import sys
from pathlib import Path

BEGIN = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from ltrain_train.loop import command

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

plan = SimpleNamespace(home=Path(sys.argv[1]), name="r", policy="p")
"""
LOST = """
class Deaf:
    def __del__(self):  # Python ignores what is raised here
        interrupt()

with command._hold_lock(plan):
    Deaf()
    print("lost", flush=True)
    interrupt()
    print("deaf", flush=True)
"""
BLOCKED = """
try:
    with command._hold_lock(plan):
        interrupt()
except KeyboardInterrupt:
    os.write(1, b"unwound")
os._exit(0)  # nothing more is written to stderr
"""
TWICE = """
with command._hold_lock(plan) as lock:
    try:
        interrupt()
    finally:
        interrupt()
        try:
            raise ValueError
        except ValueError:
            interrupt()
        print("cleaned up", flush=True)
"""
ENDED = """
with command._hold_lock(plan) as lock:
    with lock.working():
        pass
    interrupt()
    print("cleaned up", flush=True)
"""
WAIT = 60.0


def run(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code, str(home)],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def test_a_swallowed_interrupt_is_raised_by_the_next_signal(tmp_path: Path) -> None:
    done = run(LOST, tmp_path)
    assert done.stdout == "lost\n"
    assert done.returncode != 0
    assert done.stderr.count("ltrain: stopping; the same command continues from here.") == 2


def test_a_blocking_stderr_does_not_delay_the_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, bytes(1 << 12))
        except BlockingIOError:
            break
    os.set_blocking(writing, True)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + BLOCKED, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=writing,
        timeout=WAIT,
        check=False,
    )
    os.close(reading)
    os.close(writing)
    assert done.stdout == b"unwound"


def test_a_second_interrupt_does_not_break_the_cleanup(tmp_path: Path) -> None:
    done = run(TWICE, tmp_path)
    assert done.stdout == "cleaned up\n"
    assert done.stderr.count("ltrain: stopping; ") == 1
    assert done.stderr.count("ltrain: still stopping; `kill -9 ") == 2


def test_an_interrupt_after_the_work_changes_nothing(tmp_path: Path) -> None:
    done = run(ENDED, tmp_path)
    assert (done.stdout, done.returncode) == ("cleaned up\n", 0)
    assert "ltrain: still stopping; " in done.stderr
