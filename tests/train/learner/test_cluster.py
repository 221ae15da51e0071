"""The messages of errors in Ray's workers."""

import ray

from ltrain_train.learner.ranks.cluster import describe_error


def test_an_out_of_memory_error_is_named() -> None:
    """Ray's own message ends with advice on Ray's settings."""
    text = "Task was killed due to the node running low on memory.\nRefer to the documentation"
    message = describe_error(ray.exceptions.OutOfMemoryError(text))  # type: ignore[no-untyped-call]
    assert "ran out of memory" in message and "tokens_per_micro_batch" in message


def test_any_other_error_is_its_last_line() -> None:
    assert describe_error(ValueError("first\n  no such column: x\n")) == "no such column: x"
    assert describe_error(KeyError()) == "KeyError"
