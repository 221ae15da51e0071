"""No trace of an adversary ends a build: what cannot be read is a drop, and the rest goes on."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.security.hostile import TRACES, Trace, frame

from ltrain_transforms.pipeline import derive
from ltrain_transforms.recipe import Recipe

RECIPE = """
source = { run = "r" }
policy = [{ name = "policy" }]

[[reward]]
name = "answer"
evaluation = "reward"
from = "any"
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("r") / "ltrain.toml"
    path.write_text(RECIPE)
    return Recipe.load(path)


@settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.lists(TRACES, min_size=8, max_size=8))
def test_no_trace_ends_a_build(recipe, traces: list[Trace]) -> None:
    derive(frame(traces), recipe)
