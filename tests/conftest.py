"""How the tests are spread over two processes, `make test`: what starts models stays in one."""

from pathlib import Path

import pytest

HEAVY = ("end_to_end", "train")
"""Folders whose tests start vLLM or a learner: two at a time would not fit two cores."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in HEAVY:
            item.add_marker(pytest.mark.xdist_group("models"))
