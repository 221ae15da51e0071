"""docs/troubleshooting.md has a fix for each reason of a drop and for each error."""

import re
from importlib import import_module
from inspect import isclass

import pytest
from setup.reference import REASONS
from tests.docs.blocks import ROOT

from ltrain_instrument.errors import LtrainError

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SECTIONS = {
    "spans": "### Spans",
    "calls": "### Calls and states",
    "states": "### Calls and states",
    "executions": "### Executions",
    "rewards": "### Rewards",
    "groups": "### Groups",
    "rows": "### Rows",
    "exports": "### Exports",
}
"""The heading of the page with the reasons of a stage."""
MODULES = ("ltrain_instrument", "ltrain_collector", "ltrain_transforms", "ltrain_train")


def names(heading: str) -> set[str]:
    """Return the names in the first column of the table below a heading."""
    section = PAGE.split(f"{heading}\n")[1].split("\n#")[0]
    cells = re.findall(r"^\| (`.+?) \| ", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("stage", REASONS)
def test_every_reason_of_a_drop_has_a_fix(stage: str) -> None:
    assert set(REASONS[stage]) <= names(SECTIONS[stage])


def test_no_reason_is_listed_that_does_not_exist() -> None:
    for heading in set(SECTIONS.values()):
        stages = [stage for stage, section in SECTIONS.items() if section == heading]
        assert names(heading) == {reason for stage in stages for reason in REASONS[stage]}


def test_every_error_has_a_fix() -> None:
    errors = {
        name
        for module in MODULES
        for name, value in vars(import_module(f"{module}.errors")).items()
        if isclass(value) and issubclass(value, LtrainError) and value is not LtrainError
    }
    assert names("## Errors") == errors
