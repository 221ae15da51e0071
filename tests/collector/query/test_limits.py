"""Whether the threads of a query get another nice value."""

import subprocess
import sys

import pytest

PROBE = "from ltrain_collector.query.limits import can_set_nice; print(can_set_nice())"


@pytest.mark.parametrize("nice", ["5", "10", "15"])
def test_a_process_that_was_started_with_a_nice_value_sets_no_other(nice: str) -> None:
    """ClickHouse would lower it to 0, and end the process where it must not."""
    command = ["nice", "-n", nice, sys.executable, "-c", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
