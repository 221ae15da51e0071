from ltrain_train.runs.journal import Phase
from ltrain_train.runs.report import Phases, split_time


def test_each_moment_counts_for_one_phase() -> None:
    phases = [
        Phase("train", 4.0, 9.0),
        Phase("generate", 2.0, 6.0),
        Phase("build", 11.0, 12.0),
        Phase("other", 0.0, 20.0),
    ]
    assert split_time(phases, ("generate", "train", "build"), 1.0, 20.0) == {
        "start": 1.0,
        "generate": 4.0,
        "train": 3.0,
        "between": 2.0,
        "build": 1.0,
        "end": 8.0,
    }


def test_without_phases_all_is_the_start() -> None:
    assert split_time([], ("generate",), 1.0, 3.0) == {"start": 2.0}


def test_a_phase_that_fails_is_measured_and_is_returned_once() -> None:
    phases = Phases()
    try:
        with phases.measure("build"):
            raise OSError
    except OSError:
        pass
    [phase] = phases.pop()
    assert phase.name == "build" and phase.began <= phase.ended
    assert phases.pop() == ()
