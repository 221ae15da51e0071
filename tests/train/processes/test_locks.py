"""The locks of runs and policies: one process at a time."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ltrain_train.errors import RunInUse
from ltrain_train.processes import locks
from ltrain_train.processes.locks import run_lock

HOLD = """
import sys, time
from pathlib import Path
from ltrain_train.processes.locks import run_lock
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
from ltrain_train.processes.locks import run_lock
from ltrain_train.processes.children import Children, Command
home = Path(sys.argv[1])
with run_lock(home, run="r", policy="p") as lock, Children(lock.descriptors) as children:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
    command = [sys.executable, "-c", code + "time.sleep(600)"]
    log = home / "deaf.log"
    deaf = Command(argv=command, log=log, grace=2.0)
    children.start("deaf", deaf, ready=lambda: bool(log.read_text()))
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
    monkeypatch.setattr(locks, "BUSY_TIMEOUT", 0.2)


@pytest.mark.parametrize(("run", "policy"), [("r", "other"), ("other", "p")])
def test_a_run_or_a_policy_in_use_is_refused(tmp_path: Path, run: str, policy: str) -> None:
    with holder(HOLD, str(tmp_path), "r", "p") as process:
        pid = process.pid
        sentence = rf"in use by process {pid}; only one process .* stop it with `kill {pid}`"
        with pytest.raises(RunInUse, match=sentence), run_lock(tmp_path, run=run, policy=policy):
            raise AssertionError("the lock was taken twice")
        with run_lock(tmp_path, run="other", policy="other"):
            pass
    with run_lock(tmp_path, run=run, policy=policy):
        pass


def test_a_stopping_holder_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with holder(HOLD, str(tmp_path), "r", "p") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stopping\n"
        ending = subprocess.Popen(["sh", "-c", f"sleep 1; kill {process.pid}"])
        with run_lock(tmp_path, run="r", policy="p"):
            assert process.wait(10) != 0
        ending.wait()
    message = capfd.readouterr().err
    assert message == f"ltrain: waiting for the run that is stopping (pid {process.pid})\n"


def test_the_wait_for_a_stopping_holder_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "STOP_TIMEOUT", 0.2)
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


def test_a_killed_holder_releases_the_lock(tmp_path: Path) -> None:
    with holder(HOLD, str(tmp_path), "r", "p") as process:
        process.kill()
        process.wait()
        with run_lock(tmp_path, run="r", policy="p"):
            pass


def test_the_first_lock_of_a_home_makes_private_folders(tmp_path: Path) -> None:
    home = tmp_path / "above" / "home"
    with run_lock(home, run="r"):
        made = (home.parent, home, home / "locks")
        assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700] * 3


@pytest.mark.parametrize("name", ["team/exp", "../r", "a b"])
def test_a_run_may_have_any_name(tmp_path: Path, name: str) -> None:
    with holder(HOLD, str(tmp_path), name, "p") as process:
        with (
            pytest.raises(RunInUse, match=f"The run {name} of .* process {process.pid}"),
            run_lock(tmp_path, run=name),
        ):
            raise AssertionError("the lock was taken twice")
        with run_lock(tmp_path, run="exp"):
            pass
    assert {file.parent for file in tmp_path.rglob("*.lock")} == {tmp_path / "locks"}


def test_a_process_that_waits_for_the_policy_is_recorded_as_holder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holder(HOLD, str(tmp_path), "r", "p"):
        pass  # its word stays in the files
    monkeypatch.setattr(locks, "BUSY_TIMEOUT", 60.0)
    with holder(HOLD, str(tmp_path), "other", "p") as process:
        code = HOLD.replace("import sys, time", "import sys, time; print('held', flush=True)")
        with holder(code, str(tmp_path), "r", "p") as waiting:
            until = time.monotonic() + 60
            while f'"pid": {waiting.pid},' not in (tmp_path / "locks" / "run-r.lock").read_text():
                assert waiting.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
        assert process.poll() is None


def test_a_lock_covers_several_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BUSY_TIMEOUT", 0.0)
    with run_lock(tmp_path, run="eval", policy=["b", "a", "b"]) as lock:
        assert len(lock.descriptors) == 3
        for name in "ab":
            with (
                pytest.raises(RunInUse, match=f"The policy {name} of"),
                run_lock(tmp_path, policy=name),
            ):
                raise AssertionError("it was locked twice")
    with run_lock(tmp_path, policy="a"):
        pass


def test_blocks_of_work_may_be_nested(tmp_path: Path) -> None:
    with run_lock(tmp_path, run="r") as lock:
        with lock.working():
            with lock.working():
                pass
            assert not (lock.stopping or lock.unwinding), "ctrl-C still ends the work"
        assert lock.stopping and lock.unwinding
