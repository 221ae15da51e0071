"""Which processes count as running: not zombies, and not impossible ids."""

import os
import subprocess
import sys
import time

from ltrain_instrument.machine import is_running


def test_a_process_runs_until_it_is_a_zombie() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_running(process.pid)
        process.kill()
        until = time.monotonic() + 60
        while is_running(process.pid) and time.monotonic() < until:  # nobody has waited for it
            time.sleep(0.01)
        assert not is_running(process.pid)
        assert process.returncode is None
    assert not is_running(process.pid)


def test_this_process_and_another_users_process_run() -> None:
    assert is_running(os.getpid())
    assert is_running(1)


def test_an_impossible_process_id_does_not_run() -> None:
    assert not is_running(10**30)
