"""A loss is checked when the recipe is loaded, without the learner's packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import POLICY_LOSSES, Recipe, Train

RECIPE = """
policy = [{{ name = "sql" }}]
reward = [{{ name = "answer", evaluation = "reward" }}]

[train]
loss = "{}"
loss_weighting = "{}"
"""


@pytest.mark.parametrize(
    ("loss", "weighting", "sentence"),
    [
        ("vanila", "token", r"train.loss: Unknown policy loss 'vanila'\. .*Did you mean 'vanilla'"),
        ("ppo", "token", r"Choose from: cispo, clip_cov, .*vanilla\."),
        ("geo_mean", "token", "train.loss: 'geo_mean': it averages over the rows of a micro-batch"),
        ("dro", "token", "a recipe has no key for"),
        ("bypass_mode", "token", "name that loss"),
        ("kl_cov", "rollout", "loss_weighting = 'rollout' cannot go with loss = 'kl_cov'"),
        ("clip_cov", "call", "Set loss_weighting = 'token', or choose from: cispo, dppo_kl"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_refused_on_load(
    tmp_path: Path, loss: str, weighting: str, sentence: str
) -> None:
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE.format(loss, weighting))
    with pytest.raises(BadRecipe, match=sentence):
        Recipe.load(path)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("low_var_kl", r"train\.kl_estimator: verl's 'low_var_kl' is 'k3' here\."),
        ("k4", "Unknown KL estimator 'k4'. Choose from: abs, abs\\+, k1"),
    ],
)
def test_an_unknown_estimator_is_refused_on_load(tmp_path: Path, name: str, sentence: str) -> None:
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE.format("vanilla", "rollout") + f'kl_estimator = "{name}"\n')
    with pytest.raises(BadRecipe, match=sentence):
        Recipe.load(path)


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_every_declared_loss_loads(loss: str) -> None:
    assert Train(loss=loss).loss == loss


def test_the_defaults_depend_on_the_adapter_and_the_loss() -> None:
    assert (Train().learning_rate, Train(lora_rank=0).learning_rate) == (5e-4, 1e-5)
    assert Train(lora_rank=0, learning_rate=1e-6).learning_rate == 1e-6
    assert (Train().kl_estimator, Train(kl_in="reward").kl_estimator) == ("k3", "k1")
    assert (Train().loss_weighting, Train(loss="kl_cov").loss_weighting) == ("rollout", "token")


def test_the_check_imports_no_learner() -> None:
    code = (
        "import sys; from ltrain_transforms.recipe import Train; Train(loss='gspo'); "
        "print({'torch', 'verl', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
