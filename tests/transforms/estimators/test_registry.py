"""An estimator is one record: recipes, credit and the scope of a round read it."""

from typing import Any

import polars as pl
import pytest

from ltrain_transforms.datasets.phases import credit_reach
from ltrain_transforms.estimators import ESTIMATORS, Estimator, outcome_estimator
from ltrain_transforms.recipe import Recipe


def recipe(**outcome: Any) -> Recipe:
    keys = {"policy": [{"name": "p"}], "reward": [{"name": "r", "evaluation": "reward"}]}
    return Recipe.model_validate({**keys, "credit": {"outcome": outcome}})


def half(members: pl.DataFrame, settings: object) -> pl.Series:
    return members["reward"] / 2


def test_a_record_is_all_that_a_new_estimator_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS, "half", Estimator(half, reach="time", needs_critic=True))
    loaded = recipe(estimator="half")
    assert outcome_estimator("half").function is half
    assert (credit_reach(loaded), loaded.credit.uses_critic) == ("time", True)


def test_an_estimator_of_agents_refuses_other_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS, "half", Estimator(half, for_agents=True))
    assert recipe(estimator="half", peers="agent").credit.outcome.estimator == "half"
    with pytest.raises(ValueError, match=r"estimator = 'half' keeps a baseline for each agent"):
        recipe(estimator="half")


def test_only_gae_leaves_the_advantages_to_a_critic() -> None:
    assert [name for name, each in ESTIMATORS.items() if each.needs_critic] == ["gae"]
    assert {name for name, each in ESTIMATORS.items() if each.reach == "time"} == {"running", "rae"}
