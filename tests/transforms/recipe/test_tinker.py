"""What a server of the Tinker API cannot do is an error when the recipe is loaded."""

from pathlib import Path

import pytest

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe

RECIPE = """
policy = [{ name = "sql" }]
reward = [{ name = "answer", evaluation = "reward" }]
"""
TINKER = 'backend = "tinker"\ntinker.base_model = "m"\n'


def load(tmp_path: Path, train: str, more: str = "") -> Recipe:
    path = tmp_path / "ltrain.toml"
    path.write_text(f"{RECIPE}\n[train]\n{train}\n{more}")
    return Recipe.load(path)


def test_a_server_is_an_address_and_a_model(tmp_path: Path) -> None:
    options = 'tinker.base_url = "http://127.0.0.1:8000/"\nverl.optimizer.betas = [0.9, 0.95]\n'
    train = load(tmp_path, TINKER + options + "verl.actor.clip_ratio_c = 4").train
    assert train.trains_elsewhere
    assert train.tinker.base_url == "http://127.0.0.1:8000"
    assert load(tmp_path, TINKER).digest != load(tmp_path, "").digest
    assert not load(tmp_path, "").train.trains_elsewhere
    assert load(tmp_path, TINKER).secrets == ("TINKER_API_KEY",)


def test_prices_change_nothing_that_is_trained(tmp_path: Path) -> None:
    prices = "tinker.prices = {{ prefill = 0.1, sample = {}, train = 0.4 }}\n"
    priced = load(tmp_path, TINKER + prices.format(0.4))
    assert priced.train.tinker.prices is not None
    assert priced.digest == load(tmp_path, TINKER).digest
    with pytest.raises(BadRecipe, match=r"train\.tinker\.prices\.sample"):
        load(tmp_path, TINKER + prices.format(-1))


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (TINKER + 'tinker.api_key = "tml-1"', r"no keys.*Remove `api_key`, and set TINKER_API_KEY"),
        (TINKER + 'tinker.base_url = "https://tml-1@host"', r"train\.tinker\.base_url"),
        (TINKER + "lora_rank = 0", r"`lora_rank` is 0, and the Tinker API trains adapters only"),
        (TINKER + "lora_alpha = 8", r"`lora_alpha` cannot be set.*the server sets the scale"),
        (TINKER + "entropy_coefficient = 0.1", r"`entropy_coefficient`.*no entropies"),
        (TINKER + "kl_coefficient = 0.1", r"`kl_coefficient`.*no reference"),
        (TINKER + "ranks = 2", r"`ranks` cannot be set.*divides the work itself"),
        (TINKER + "ranks = 2\nsequence_ranks = 2", r"`ranks` cannot be set"),
        (TINKER + 'ray_address = "auto"', r"`ray_address`.*no Ray"),
        (TINKER + 'colocate = "swap"', r"`colocate`.*no GPU of this machine"),
        (TINKER + "tokens_per_micro_batch = 9", r"`tokens_per_micro_batch`"),
        (TINKER + "verl.engine.model_dtype = 'bf16'", r"\[train\.verl\.engine\] model_dtype"),
        (TINKER + "verl.optimizer.optimizer = 'SGD'", r"\[train\.verl\.optimizer\] optimizer"),
        (TINKER + "critic.gamma = 0.9", r"`critic`"),
    ],
)
def test_what_the_api_lacks_is_named(tmp_path: Path, train: str, sentence: str) -> None:
    with pytest.raises(BadRecipe, match=sentence):
        load(tmp_path, train)


def test_an_estimator_with_a_critic_is_refused(tmp_path: Path) -> None:
    credit = '[credit.outcome]\nestimator = "gae"\n'
    with pytest.raises(BadRecipe, match=r"'gae' needs a critic, and the Tinker API trains none"):
        load(tmp_path, TINKER, credit)


def test_the_backend_is_that_of_the_whole_run(tmp_path: Path) -> None:
    path = tmp_path / "ltrain.toml"
    path.write_text(
        'policy = [{ name = "sql", train = { backend = "tinker" } }]\n'
        'reward = [{ name = "answer", evaluation = "reward" }]\n'
    )
    with pytest.raises(BadRecipe, match="`backend` is a key of the whole run"):
        Recipe.load(path)
