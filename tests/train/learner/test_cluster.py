"""What the user reads of an error in a worker of Ray."""

import ray

from ltrain_train.learner.cluster import describe_error


def test_memory_that_ran_out_is_named() -> None:
    """Ray's own message ends with advice on Ray's settings."""
    text = "Task was killed due to the node running low on memory.\nRefer to the documentation"
    found = describe_error(ray.exceptions.OutOfMemoryError(text))  # type: ignore[no-untyped-call]
    assert "ran out of memory" in found and "tokens_per_micro_batch" in found


def test_of_any_other_error_the_last_line_counts() -> None:
    assert describe_error(ValueError("first\n  no such column: x\n")) == "no such column: x"
    assert describe_error(KeyError()) == "KeyError"
