"""Options of verl are checked when the recipe is loaded, without importing verl."""

from pathlib import Path

import pytest

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe

RECIPE = """
policy = [{ name = "sql" }]
reward = [{ name = "answer", evaluation = "reward" }]

[train.verl]
"""


def load(tmp_path: Path, options: str) -> Recipe:
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE + options)
    return Recipe.load(path)


def test_options_have_verls_names_and_change_the_digest(tmp_path: Path) -> None:
    text = "actor.clip_ratio_c = 4\nactor.policy_loss.kl_cov_ratio = 0.1\n"
    text += "optimizer.betas = [0.9, 0.95]\nengine.forward_prefetch = true\n"
    recipe = load(tmp_path, text)
    verl = recipe.train.verl
    assert verl.actor.options() == {"clip_ratio_c": 4.0, "policy_loss": {"kl_cov_ratio": 0.1}}
    assert verl.optimizer.options() == {"betas": (0.9, 0.95)}
    assert verl.engine.options() == {"forward_prefetch": True}
    assert recipe.digest != load(tmp_path, "").digest


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("actor.clip_ratio_cc = 4", r"actor.clip_ratio_cc: Unknown key.* mean 'clip_ratio_c'"),
        ("optimzer.betas = 4", "train.verl.optimzer: Unknown key.* mean 'optimizer'"),
        ("engine.forward_prefetch = 1", "engine.forward_prefetch: .*boolean. Given: 1"),
        ("actor.tau_pos = 'hot'", "train.verl.actor.tau_pos: .*number. Given: 'hot'"),
        ("optimizer.lr = 1", "verl's option 'lr' cannot be set here: set train.learning_rate inst"),
        ("engine.strategy = 'fsdp'", "'strategy' cannot be set here: ltrain sets it"),
        ("actor.policy_loss.loss_mode = 'dro'", "policy_loss: verl's option 'loss_mode' cannot be"),
        ("engine.pad_to_length = true", "'pad_to_length' cannot be set here: the learner does not"),
    ],
)
def test_an_option_that_cannot_be_set_is_named(tmp_path: Path, options: str, sentence: str) -> None:
    with pytest.raises(BadRecipe, match=sentence):
        load(tmp_path, options)
