"""How many examples a property test draws: few for a change, its own number in the nightly run."""

import hypothesis

PER_CHANGE = 25
NIGHTLY = 100


def examples(count: int, *, change: int = PER_CHANGE) -> int:
    """Return the `max_examples` of a test that draws `count` in the nightly run, `change` else.

    The profile of `tests/conftest.py` decides; a test module calls this when it is imported.
    """
    profile = hypothesis.settings.default
    assert profile is not None
    return count if profile.max_examples == NIGHTLY else min(count, change)
