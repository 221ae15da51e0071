"""Child processes, with real processes and signals: none is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ltrain_train.processes.children import ChildDied, ChildNotReady, Children, Command

FAMILY = """
import os, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
away = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print(os.getpid(), away.pid, flush=True)
time.sleep(600)
"""
"""A child with a child of its own that left the process group and ignores SIGTERM."""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.02)


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def written(log: Path) -> list[int]:
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    return [int(word) for word in log.read_text().split()]


def test_a_child_is_ready_and_stopped_with_its_descendants(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "family.log"
    with Children() as children:
        child = children.start(
            "family",
            Command(argv=python(FAMILY), log=log),
            ready=lambda: log.read_text().endswith("\n"),
        )
        processes = written(log)
        assert child.alive
        children.check()
    assert child.returncode == -signal.SIGTERM
    assert all(gone(process) for process in processes)


def test_a_death_at_start_quotes_the_log(tmp_path: Path) -> None:
    code = "import sys; print('no weights here'); sys.exit(3)"
    with Children() as children, pytest.raises(ChildDied) as caught:
        children.start(
            "vLLM", Command(argv=python(code), log=tmp_path / "v.log"), ready=lambda: False
        )
    assert "vLLM ended with exit status 3" in str(caught.value)
    assert "no weights here" in str(caught.value)


def test_only_the_output_of_this_child_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("an older run\n")
    with Children() as children, pytest.raises(ChildDied, match=r"\(empty\)"):
        children.start(
            "a", Command(argv=python("raise SystemExit(1)"), log=log), ready=lambda: False
        )


def test_check_raises_a_later_death(tmp_path: Path) -> None:
    with Children() as children:
        child = children.start(
            "agent", Command(argv=python("import time; time.sleep(60)"), log=tmp_path / "a")
        )
        os.killpg(child.pid, signal.SIGKILL)
        until(lambda: not child.alive)
        with pytest.raises(ChildDied, match=r"agent ended by signal SIGKILL"):
            children.check()


def test_a_stopped_child_is_not_a_death(tmp_path: Path) -> None:
    with Children() as children:
        child = children.start(
            "agent", Command(argv=python("import time; time.sleep(60)"), log=tmp_path / "a")
        )
        child.stop()
        children.check()


def test_two_threads_can_stop_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each closed the pipe to the guard: the second close failed, or closed another file."""
    closed = []

    def close(number: int) -> None:
        closed.append(number)
        time.sleep(0.2)  # the other thread comes
        real(number)

    real = os.close
    with Children() as children:
        child = children.start("child", Command(argv=["sleep", "600"], log=tmp_path / "log"))
        monkeypatch.setattr(os, "close", close)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: child.request_stop(), range(2)))
        monkeypatch.undo()
        assert len(closed) == 1
        assert child.wait(10) == -signal.SIGTERM


def test_nothing_is_started_after_the_stop(tmp_path: Path) -> None:
    children = Children()
    children.stop()
    with pytest.raises(ChildDied, match=r"agent is not started, because its owner is stopping"):
        children.start(
            "agent", Command(argv=python("import time; time.sleep(60)"), log=tmp_path / "a")
        )
    assert not (tmp_path / "a").exists()


def test_a_child_that_is_not_ready_in_time_is_stopped(tmp_path: Path) -> None:
    log = tmp_path / "late.log"
    with Children() as children, pytest.raises(ChildNotReady, match=r"not ready after 0\.3 s"):
        children.start(
            "late", Command(argv=python(FAMILY), log=log), ready=lambda: False, timeout=0.3
        )
    assert all(gone(int(word)) for word in log.read_text().split())


def test_sigterm_ignored_ends_in_sigkill(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(600)"
    log = tmp_path / "deaf.log"
    with Children() as children:
        child = children.start(
            "deaf", Command(argv=[*python(code)], log=log, env={"PYTHONUNBUFFERED": "1"}, grace=0.2)
        )
        written(log)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert child.returncode == -signal.SIGKILL


def test_an_unknown_program_is_named(tmp_path: Path) -> None:
    with Children() as children, pytest.raises(ChildDied, match=r"no program 'no-such-program'"):
        children.start("vLLM", Command(argv=["no-such-program", "serve"], log=tmp_path / "v.log"))


def test_a_pipe_closes_with_the_child(tmp_path: Path) -> None:
    read, write = os.pipe()
    with Children() as children:
        code = f"import os; os.write({write}, b'hello')"
        children.start(
            "talker", Command(argv=python(code), log=tmp_path / "t.log", pass_fds=[write])
        )
        os.close(write)
        assert os.read(read, 100) == b"hello"
        assert os.read(read, 100) == b""
    os.close(read)


def test_the_environment_is_added_to_this_processs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAKEN", "1")
    monkeypatch.setenv("KEPT", "2")
    code = "import os; print(*(os.environ.get(n) for n in ('TAKEN', 'KEPT', 'GIVEN')))"
    with Children() as children:
        child = children.start(
            "env",
            Command(argv=python(code), env={"TAKEN": None, "GIVEN": "3"}, log=tmp_path / "e.log"),
        )
        assert child.wait(10) == 0
        assert child.tail() == "None 2 3"


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    with Children() as children:
        started = []

        def start() -> None:
            code = "import time; time.sleep(60)"
            started.append(children.start("a", Command(argv=python(code), log=tmp_path / "a.log")))

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        time.sleep(0.3)
        assert started[0].alive


LOOKS = """
import sys
from ltrain_train.processes import guard
look, looks = guard._descendants, []
guard._descendants = lambda: looks.append(0) or (look() if len(looks) > 2 else [])
sys.exit(guard.run_guarded(sys.argv[1:]))
"""
"""A guard whose first two scans of the processes miss all of them."""


def test_a_scan_that_misses_a_descendant_does_not_end_the_guard(tmp_path: Path) -> None:
    """A process whose parent ends while /proc is read has no parent in that scan."""
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    lifeline, ours = os.pipe()
    try:
        command = [sys.executable, "-c", LOOKS, str(lifeline), "1", "", "", *python(leaves)]
        done = subprocess.run(
            command, pass_fds=[lifeline], capture_output=True, text=True, timeout=120
        )
    finally:
        os.close(lifeline)
        os.close(ours)
    assert done.returncode == 0, done.stderr
    assert gone(int(done.stdout))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_die_with_their_owner(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "family.log"
    owner = (
        "import sys, time\nfrom pathlib import Path\n"
        "from ltrain_train.processes import Children, Command\n"
        "with Children() as children:\n"
        f"    argv = [sys.executable, '-c', {FAMILY!r}]\n"
        f"    children.start('f', Command(argv=argv, log=Path({str(log)!r})))\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(python(owner), stderr=subprocess.DEVNULL)
    processes = written(log)
    process.send_signal(number)
    process.wait()
    until(lambda: all(gone(each) for each in processes))
