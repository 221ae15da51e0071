"""Publications through a real vLLM while clients stream: no call fails, waits or is mislabelled."""

from pathlib import Path

import pytest
from benchmarks.publications import run


@pytest.mark.parametrize(
    ("adapters", "swaps", "replicas"),
    [
        (3, 1, 1),
        pytest.param(6, 2, 1, marks=pytest.mark.nightly),
        pytest.param(3, 1, 2, marks=pytest.mark.nightly),
    ],
)
def test_each_call_has_the_log_probabilities_of_its_version(
    tmp_path: Path, adapters: int, swaps: int, replicas: int
) -> None:
    report = run(tmp_path, adapters=adapters, swaps=swaps, clients=6, replicas=replicas)
    assert report.met, list(report.lines())
    assert report.calls > 6
    # the first version, each adapter and each of the full weights answered
    assert report.versions == 1 + adapters + swaps
