"""Deadlines, and the time of a process that no step of the clock changes."""

import time
from dataclasses import replace

import pytest

from ltrain_instrument.clock import Deadline, steady_time

STEPS = (86_400.0, -86_400.0, 3_600.0, -3_600.0)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_clock_moves_no_deadline_of_this_boot(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    before, deadline, now = steady_time(), Deadline.after(60.0), time.time
    monkeypatch.setattr(time, "time", lambda: now() + step)
    assert 50 < deadline.left <= 60
    assert 50 < Deadline.after(60.0).left <= 60
    assert 0 <= steady_time() - before < 10


@pytest.mark.parametrize("boot", ["", "another"])
def test_a_deadline_of_another_boot_ends_by_the_clock(boot: str) -> None:
    deadline = Deadline.after(60.0)
    assert 50 < replace(deadline, boot=boot, monotonic=0.0).left <= 60
    assert replace(deadline, boot=boot, wall=time.time() - 1).left < 0
