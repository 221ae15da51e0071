"""One process for each run and each policy of a home."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ltrain_train.errors import RunInUse
from ltrain_train.loop import lock
from ltrain_train.loop.lock import run_lock

HOLD = """
import sys, time
from pathlib import Path
from ltrain_train.loop.lock import run_lock
with run_lock(Path(sys.argv[1]), run=sys.argv[2], policy=sys.argv[3]) as lock:
    print("held", flush=True)
    sys.stdin.readline()
    lock.stop()
    print("stopping", flush=True)
    sys.stdin.readline()
"""
STARTED = """
import sys, time
from pathlib import Path
from ltrain_train.loop.lock import run_lock
from ltrain_train.process import Children
home = Path(sys.argv[1])
with run_lock(home, run="r", policy="p") as lock, Children(lock.descriptors) as children:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
    command = [sys.executable, "-c", code + "time.sleep(600)"]
    log = home / "deaf.log"
    children.start(
        "deaf", command, log=log, grace=2.0, ready=lambda: bool(log.read_text())
    )
    print("held", flush=True)
    time.sleep(600)
"""
"""Its child ignores SIGTERM: its guard ends it two seconds after the owner's death."""


@contextmanager
def holder(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BUSY", 0.2)


@pytest.mark.parametrize(("run", "policy"), [("r", "other"), ("other", "p")])
def test_a_run_or_a_policy_that_is_worked_on_is_refused(
    tmp_path: Path, run: str, policy: str
) -> None:
    with holder(HOLD, str(tmp_path), "r", "p") as process:
        sentence = (
            rf"in use by process {process.pid}; each run .* stop it with `kill {process.pid}`"
        )
        with pytest.raises(RunInUse, match=sentence), run_lock(tmp_path, run=run, policy=policy):
            raise AssertionError("the lock was taken twice")
        with run_lock(tmp_path, run="other", policy="other"):
            pass
    with run_lock(tmp_path, run=run, policy=policy):
        pass


def test_a_run_that_stops_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with holder(HOLD, str(tmp_path), "r", "p") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stopping\n"
        ending = subprocess.Popen(["sh", "-c", f"sleep 1; kill {process.pid}"])
        with run_lock(tmp_path, run="r", policy="p"):
            assert process.wait(10) != 0
        ending.wait()
    said = capfd.readouterr().err
    assert said == f"ltrain: waiting for the run that is stopping (pid {process.pid})\n"


def test_the_wait_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "STOPPING", 0.2)
    with holder(HOLD, str(tmp_path), "r", "p") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stopping\n"
        with (
            pytest.raises(RunInUse, match=r"stopping for 0\.2 s"),
            run_lock(tmp_path, run="r", policy="p"),
        ):
            raise AssertionError("the lock was taken twice")


def test_a_killed_holder_is_waited_for_until_its_children_have_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with holder(STARTED, str(tmp_path)) as process:
        process.kill()
        process.wait()
        began = time.monotonic()
        with run_lock(tmp_path, run="r", policy="p"):
            assert time.monotonic() - began > 1.0
    assert f"(pid {process.pid})" in capfd.readouterr().err


def test_a_killed_holder_frees_it(tmp_path: Path) -> None:
    with holder(HOLD, str(tmp_path), "r", "p") as process:
        process.kill()
        process.wait()
        with run_lock(tmp_path, run="r", policy="p"):
            pass
