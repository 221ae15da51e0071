"""What all tests need."""

import atexit
import os
import resource
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest
from tests.empty_store import SHARED
from tests.groups import Groups
from tests.property_examples import NIGHTLY, PER_CHANGE
from tests.selection import (
    EXAMPLES,
    FRAMEWORKS,
    ROOT,
    Selection,
    framework_tests,
    selection,
    spread,
)

_, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
# chDB keeps some descriptors of each folder that was opened, and a run opens a hundred
resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))

# a job in the background ignores these signals, and so would every process that a test starts
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run what a change does not need, too")


def pytest_configure(config: pytest.Config) -> None:
    if SHARED not in os.environ:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="ltrain-store-")
        atexit.register(shutil.rmtree, os.environ[SHARED], ignore_errors=True)
    nightly = config.getoption("--nightly")
    # a busy machine takes longer than the 200 ms that hypothesis allows an example
    hypothesis.settings.register_profile("change", max_examples=PER_CHANGE, deadline=None)
    hypothesis.settings.register_profile("nightly", max_examples=NIGHTLY, deadline=None)
    hypothesis.settings.load_profile("nightly" if nightly else "change")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):
        chosen = selection()
        left = {item for item in items if not is_needed(item, chosen)} | unsampled(items)
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    """Schedule groups of tests with `--dist loadgroup`, in place of pytest-xdist's own."""
    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--nightly"):
        return "tests: all"
    files = selection().files
    known = "all frameworks and examples" if files is None else f"a change of {len(files)} files"
    return f"tests: those of {known}; --nightly runs all"


def unsampled(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the cases of tests with the marker `sampled` that a change does not need."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left = set[pytest.Item]()
    for each in cases.values():
        marker = each[0].get_closest_marker("sampled")
        assert marker is not None
        left |= {*each} - {*spread(each, marker.args[0])}
    return left


def is_needed(item: pytest.Item, chosen: Selection) -> bool:
    """Return whether a change needs the test."""
    if item.get_closest_marker("nightly"):
        return False
    if item.path.is_relative_to(FRAMEWORKS):
        name = item.path.stem.removeprefix("test_")
        return chosen.has_framework(name, framework_tests()[name])
    if item.path.is_relative_to(EXAMPLES):
        name = item.path.stem.removeprefix("test_")
        return not (ROOT / "examples" / name).is_dir() or chosen.has_example(name)
    if item.path.is_relative_to(ROOT / "tests" / "example_runs"):
        return chosen.trains_example(item.name.partition("[")[2].rstrip("]"))
    return True
