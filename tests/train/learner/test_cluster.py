"""The messages of errors in Ray's workers."""

import os
import signal

import pytest
import ray

from ltrain_train.learner.verl_backend.cluster import (
    as_actor_class,
    describe_error,
    start_ray,
    stop_ray,
)


def test_an_out_of_memory_error_is_named() -> None:
    """Ray's own message ends with advice on Ray's settings."""
    text = "Task was killed due to the node running low on memory.\nRefer to the documentation"
    message = describe_error(ray.exceptions.OutOfMemoryError(text))  # type: ignore[no-untyped-call]
    assert "ran out of memory" in message and "tokens_per_micro_batch" in message


def test_any_other_error_is_its_last_line() -> None:
    assert describe_error(ValueError("first\n  no such column: x\n")) == "no such column: x"
    assert describe_error(KeyError()) == "KeyError"


@pytest.mark.nightly
def test_a_rank_that_died_is_named_before_the_error_of_another_rank(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    class Rank:  # in here, so that Ray copies it instead of importing this module
        def process(self) -> int:
            return os.getpid()

    error = RuntimeError("Connection closed by peer")
    start_ray(2, tmp_path_factory.mktemp("r"))
    try:
        ranks = [as_actor_class(Rank).remote() for _ in range(2)]
        processes = ray.get([rank.process.remote() for rank in ranks])
        assert describe_error(error, ranks) == "Connection closed by peer"
        os.kill(processes[1], signal.SIGKILL)
        message = describe_error(error, ranks)
        assert "died" in message
    finally:
        stop_ray()
