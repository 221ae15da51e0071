"""Credit and policies of a recipe, and estimators of other packages."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.transforms.waves import Called, Run, Wave, recipe

from ltrain_transforms.errors import BadEstimator, BadRecipe
from ltrain_transforms.recipe import Critic
from ltrain_transforms.recipe.recipe import Recipe

DOCS = Path(__file__).parents[3] / "docs" / "credit.md"
POLICY = '[[policy]]\nname = "sql"\n'
REWARD = '[[reward]]\nname = "answer"\nevaluation = "reward"\n'


def load(folder: Path, text: str) -> Recipe:
    path = folder / "ltrain.toml"
    path.write_text(text)
    return Recipe.load(path)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("[credit.step]\nestimator = 'gigop'\n", r"Unknown step estimator 'gigop'.*'gigpo'"),
        ("[credit.step]\nscale = 'sd'\n", r"credit.step.scale: .*none, std.*mean 'std'"),
        (
            "[credit.outcome]\npeers = 'agents'\n",
            r"credit.outcome.peers: .*mean 'agent'",
        ),
        ("[credit.outcome]\ndecay = 1.0\n", r"credit.outcome.decay: .*less than 1"),
        ("[credit.outcome]\nestimator = 'rae'\n", r"credit: .*Set peers = 'agent'"),
        ("[credit.outcome]\npeers = 'parent'\n", r"Set credit.combine = 'rewards'"),
        ("[credit]\ncombine = 'rewards'\n[credit.process]\nweight = 2\n", r"Remove one of the two"),
        (
            "[credit.outcome]\nestimator = 'gae'\n[credit.step]\nestimator = 'hgpo'\n",
            r"'gae' leaves every advantage to the trainer's critic",
        ),
        (
            "[credit.outcome]\nestimator = 'gae'\npeers = 'agent'\n",
            r"'gae' compares no executions. Remove peers",
        ),
        (
            "[train.critic]\nlam = 0.9\n",
            r"\[train.critic\] has no effect with credit.outcome.estimator = 'grpo'",
        ),
        (
            "[credit.outcome]\nestimator = 'gae'\n[train.critic]\nlam = 1.1\n",
            r"train.critic.lam: .*less than or equal to 1",
        ),
        (POLICY, r"Two policies are named 'sql'"),
        (
            "[[policy]]\nname = 'b'\nwhere = 'stattus = 1'\n",
            r"Policy 'b', where = \"stattus = 1\".*stattus.*Columns: .*status",
        ),
        ("[[policy]]\nname = 'b'\nwhere = 'seq + 1'\n", r"returns Int.*must return true or false"),
        ("[[policy]]\nname = 'b'\nwhere = 'max(seq) > 1'\n", r"aggregates are refused"),
        (
            "[[policy]]\nname = 'b'\nmodes = ['training']\n",
            r"policy.1.modes.0: Unknown value 'training'. Choose from: prod, train, val",
        ),
    ],
)
def test_an_invalid_recipe_is_refused(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(BadRecipe, match=says):
        load(tmp_path, POLICY + REWARD + more)


def test_gae_has_a_critic_with_the_defaults_or_the_keys_of_its_section(tmp_path: Path) -> None:
    text = POLICY + REWARD + "[credit.outcome]\nestimator = 'gae'\n"
    loaded = load(tmp_path, text)
    assert loaded.train.critic == Critic()
    assert loaded.with_mode("prod").train.critic == Critic()
    changed = load(tmp_path, text + "[train.critic]\ngamma = 0.9\n")
    assert changed.train.critic == Critic(gamma=0.9)
    assert changed.digest != loaded.digest
    assert load(tmp_path, POLICY + REWARD).train.critic is None


def installed(folder: Path, module: str, estimators: str) -> None:
    """Write a package as pip installs it: a module and its entry points."""
    (folder / "my_estimators.py").write_text(module)
    metadata = folder / "my_estimators-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-estimators\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(estimators)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from which packages are imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_estimators", raising=False)
    return tmp_path


def test_the_estimator_in_the_docs_works(elsewhere: Path) -> None:
    blocks: dict[str, str] = {}
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", DOCS.read_text(), re.DOTALL):
        if "against_best" in block:
            blocks[kind] = block
    points = blocks["toml"].replace('project.entry-points."ltrain.estimators"', "ltrain.estimators")
    installed(elsewhere, blocks["python"], points.replace('"', ""))
    credit_recipe = recipe({"outcome": {"estimator": "against_best"}})
    credited = Wave.of(Run(1.0), Run(0.25), Run(7.0, task="u")).credited(credit_recipe)
    assert credited.column("advantage") == {"e0.0": 0.0, "e1.0": -0.75, "e2.0": None}
    assert credited.drops == {"e2": "alone"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "members['reward'] * float('nan')",
            "'mine' returned a NaN or an infinity for 2 of 2 rows",
        ),
        ("members['reward'].head(1)", "'mine' received 2 rows and returned 1 row"),
        ("3.0", "received 2 rows and returned <class 'float'>"),
    ],
)
def test_invalid_advantages_of_an_estimator_are_refused(
    elsewhere: Path, body: str, says: str
) -> None:
    module = f"def mine(members, settings):\n    return {body}\n"
    installed(elsewhere, module, "[ltrain.estimators]\nmine = my_estimators:mine\n")
    with pytest.raises(BadEstimator, match=re.escape(says)):
        Wave.of(Run(1.0), Run(0.0)).credited(recipe({"outcome": {"estimator": "mine"}}))


def test_a_package_may_add_a_step_estimator(elsewhere: Path) -> None:
    module = "def late(steps, settings):\n    return steps['turn_index'] * settings.gamma\n"
    installed(elsewhere, module, "[ltrain.step_estimators]\nlate = my_estimators:late\n")
    credit: dict[str, Any] = {"step": {"estimator": "late", "gamma": 0.5}}
    credited = Wave.of(Run(1.0, (Called(), Called(), Called())), Run(1.0)).credited(recipe(credit))
    steps = credited.column("step_advantage")
    assert steps == {"e0.0": 0.0, "e0.1": 0.5, "e0.2": 1.0, "e1.0": 0.0}
