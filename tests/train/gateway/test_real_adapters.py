"""Publications through a real vLLM while clients stream: no call fails, waits or is mislabelled."""

from pathlib import Path

from benchmarks.publications import run


def test_each_call_has_the_log_probabilities_of_its_version(tmp_path: Path) -> None:
    report = run(tmp_path, adapters=6, swaps=2, clients=6)
    assert report.met, list(report.lines())
    assert report.calls > 6
    assert report.versions > 3
