"""The declared losses are verl's, and each is aggregated with weights."""

import json
import os
import re
import subprocess
import sys
from math import exp
from pathlib import Path
from typing import Any, get_args

import pytest

from ltrain_train.learner.verl_backend.device import learner_environment
from ltrain_transforms.recipe import KL_ESTIMATORS, POLICY_LOSSES, UNSUPPORTED_LOSSES
from ltrain_transforms.recipe.verl_options import (
    VerlActor,
    VerlEngine,
    VerlOptimizer,
    VerlPolicyLoss,
    VerlSection,
)

FIT = ("cispo", "dppo_kl", "dppo_tv", "gpg", "gspo", "sapo", "vanilla")


@pytest.fixture(scope="module")
def losses() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("losses.py")],
        env=os.environ | learner_environment(1),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_the_declared_losses_are_those_of_verl(losses: dict[str, Any]) -> None:
    assert losses["registry"] == sorted([*POLICY_LOSSES, *UNSUPPORTED_LOSSES])
    assert tuple(losses["measured"]) == FIT


def test_cross_entropy_with_equal_weights_is_that_of_verl(losses: dict[str, Any]) -> None:
    ours, verls = losses["cross-entropy"]
    assert any(ours)
    assert ours == pytest.approx(verls, rel=1e-6, abs=1e-8)


def test_the_estimators_have_schulmans_values_and_gradients(losses: dict[str, Any]) -> None:
    d, k3, slope = 0.5, exp(-0.5) - 0.5, 1 - exp(-0.5)
    expected = {
        "k1": [d, 1],
        "abs": [d, 1],
        "k2": [d * d / 2, d],
        "k3": [k3, slope],
        "k1+": [d, d],
        "abs+": [d, d],
        "k3+": [k3, d],
    }
    assert losses["divergences"].keys() == KL_ESTIMATORS.keys()
    for name, values in expected.items():
        assert losses["divergences"][name] == pytest.approx(values, rel=1e-6), name


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("actor", VerlActor),
        ("policy_loss", VerlPolicyLoss),
        ("optimizer", VerlOptimizer),
        ("engine", VerlEngine),
    ],
)
def test_every_option_of_verl_is_declared_with_its_type_or_refused(
    losses: dict[str, Any], name: str, section: type[VerlSection]
) -> None:
    options = losses["options"][name]
    keys = {key: field.annotation for key, field in section.model_fields.items()}
    assert options.keys() == keys.keys() | section.fixed.keys()
    assert not keys.keys() & section.fixed.keys()
    scalars = {key: kind for key, kind in keys.items() if get_args(kind)}
    assert {key: type_name(options[key]) for key in scalars} == {
        key: type_name(str(kind)) for key, kind in scalars.items()
    }


def type_name(annotation: str) -> str:
    """Return the name of a type, without its module and whether it may be None."""
    names = re.findall(r"\b(bool|int|float|str|dict|tuple)\b", annotation)
    return str(names[0])


@pytest.mark.parametrize("name", FIT)
def test_neither_micro_batches_nor_ranks_change_the_step(losses: dict[str, Any], name: str) -> None:
    result = losses["measured"][name]
    assert any(result["one"])
    assert result["three"] == pytest.approx(result["one"], rel=1e-5, abs=1e-7)
    assert result["ranks"] == pytest.approx(result["one"], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", FIT)
def test_calls_in_one_row_train_as_calls_in_rows_of_their_own(
    losses: dict[str, Any], name: str
) -> None:
    merged, separate = losses["measured"][name]["calls"]
    assert merged == pytest.approx(separate, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", FIT)
def test_twice_the_weight_equals_the_row_twice(losses: dict[str, Any], name: str) -> None:
    result = losses["measured"][name]
    assert result["heavy"] == pytest.approx(result["copied"], rel=1e-5)
    assert result["heavy"] != pytest.approx(result["one"][0], rel=1e-3)
