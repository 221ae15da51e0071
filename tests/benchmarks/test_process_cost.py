"""The cost of a command: what it prints, its CPU seconds and its peak memory."""

import sys

import pytest
from benchmarks.support.process_cost import run_measured

LONG_OUTPUT = 1_000_000


def test_a_command_that_prints_more_than_a_pipe_holds_is_measured() -> None:
    program = f"import time; print('x' * {LONG_OUTPUT}); sum(range(3_000_000)); time.sleep(1)"
    cost = run_measured([sys.executable, "-c", program])
    assert len(cost.output) == LONG_OUTPUT + 1
    assert cost.cpu > 0
    assert cost.peak > 1_000_000


def test_a_command_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit) as ended:
        run_measured([sys.executable, "-c", "raise SystemExit(3)"])
    assert ended.value.code == 3
