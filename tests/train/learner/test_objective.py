"""An objective is made from the recipe, travels as JSON, and has the rate of its update."""

import json

import pytest
from pydantic import ValidationError

from ltrain_train.learner.objective import Objective, decode_objective
from ltrain_transforms.recipe import Train


def test_an_objective_arrives_as_it_was_sent() -> None:
    objective = Objective.from_train(Train(loss="cispo", entropy_coefficient=0.01))
    assert decode_objective(json.loads(json.dumps(objective.encode()))) == objective
    with pytest.raises(ValidationError, match="learning_rate"):
        decode_objective(objective.encode() | {"learning_rate": "fast"})


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_rate_rises_in_the_warm_up_and_falls_until_the_run_ends(
    decay: str, rates: list[float]
) -> None:
    fields = {"learning_rate": 1.0, "warmup_updates": 2, "updates": 6, "decay": decay}
    train = Train.model_validate(fields)
    planned = [Objective.from_train(train, update).learning_rate for update in range(6)]
    assert planned == pytest.approx(rates, abs=1e-6)
    assert Objective.from_train(train).learning_rate == 1.0, "outside of a run"


def test_a_run_that_is_all_warm_up_has_a_rate() -> None:
    train = Train(learning_rate=1.0, warmup_updates=5, updates=2, decay="linear")
    assert [Objective.from_train(train, update).learning_rate for update in range(2)] == [0.2, 0.4]
