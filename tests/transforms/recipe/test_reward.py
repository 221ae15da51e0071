"""Every kind of reward: its class, its keys in manifests and the digest, and its refusals."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import REWARD_KINDS, Recipe, Reward

OWN: dict[str, dict[str, Any]] = {
    "evaluation": {"evaluation": "answer", "from": "any", "max": 1.0, "when": "never read"},
    "calls": {
        "on": "tool",
        "when": "rows IS NULL AND seq > :first",
        "value": "-1",
        "let": {"rows": "result:$.rows"},
        "params": {"first": 1},
        "schema": {"type": "object"},
        "credit_to": "requester",
        "potential": True,
    },
    "signal": {"on": "signal", "when": "http_status >= 500", "value": "-1", "max": 0.0},
    "rollout": {"on": "rollout", "value": "-wall", "gate": "reward > 0.5", "weight": 0.5},
    "python": {"python": "mine", "params": {"share": 0.5}, "min": -1.0, "credit_to": "rollout"},
}
"""The keys of one reward of each kind; an evaluation does not read `when`, and keeps it."""

STORED: dict[str, Any] = {
    "name": "r",
    "use": None,
    "evaluation": None,
    "from": "runner",
    "on": None,
    "when": "true",
    "value": None,
    "let": {},
    "params": {},
    "schema": None,
    "python": None,
    "credit_to": "self",
    "potential": False,
    "initial_potential": 0.0,
    "final_potential": 0.0,
    "gate": None,
    "min": None,
    "max": None,
    "weight": 1.0,
}
"""A reward in a stored manifest: every key, in this order, whatever the kind."""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the Python rule `mine`."""
    package = tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[ltrain.rules]\nmine = json:loads\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def recipe(**keys: Any) -> Recipe:
    return Recipe.from_sections({"policy": [{"name": "sql"}], "reward": [{"name": "r"} | keys]})


@pytest.mark.parametrize("kind", REWARD_KINDS)
def test_manifests_and_digests_have_every_key_of_each_kind(kind: str) -> None:
    made = recipe(**OWN[kind])
    assert [type(reward) for reward in made.reward] == [REWARD_KINDS[kind]]
    hashed = made.model_dump_json(by_alias=True, include={"reward"})
    stored = {"reward": [STORED | OWN[kind]]}
    assert hashed == json.dumps(stored, separators=(",", ":"))
    assert Recipe.from_sections(made.model_dump(mode="json", by_alias=True)) == made
    [written] = made.model_dump(by_alias=True, exclude_unset=True)["reward"]
    assert written == {"name": "r"} | OWN[kind]


@pytest.mark.parametrize("kind", REWARD_KINDS)
def test_python_code_makes_a_reward_of_the_kind_of_its_keys(kind: str) -> None:
    made = Reward(name="r", **OWN[kind])
    assert type(made) is REWARD_KINDS[kind]
    assert (
        (made,)
        == recipe(**OWN[kind]).reward
        == Recipe.model_validate({"policy": [{"name": "sql"}], "reward": [made]}).reward
    )
    assert made == pickle.loads(pickle.dumps(made)) == made.model_copy()


def test_python_code_may_use_a_ready_rule() -> None:
    ready: Any = {"use": "tool-failed"}
    assert Reward(**ready) == Reward.model_validate(ready)
    assert type(Reward(**ready)) is REWARD_KINDS["calls"]
    with pytest.raises(ValidationError, match="Unknown ready rule 'tool-faild'"):
        Reward(**{**ready, "use": "tool-faild"})
    with pytest.raises(ValidationError, match="must have `evaluation`"):
        Reward(name="r")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "reward.0: Reward 'r' must have `evaluation`, or `on` and `value` of a rule, or "
         "`python`, or `use` of a ready rule."),
        ({"on": "tool"}, "reward.0: Reward 'r' must have `evaluation`, or `on` and `value` of a "
         "rule, or `python`, or `use` of a ready rule."),
        ({"evaluation": "a", "value": "1"}, "reward.0: Reward 'r' has `evaluation` and keys of a "
         "rule. Remove one of the two."),
        ({"python": "mine", "on": "tool"}, "reward.0: Reward 'r' has `python` and another rule. "
         "Remove one of the two."),
        ({"evaluaton": "a"}, "reward.0.evaluaton: Unknown key 'evaluaton'."),
        ({"evaluation": "a", "credit_to": "prev"}, "reward.0.credit_to: Unknown value 'prev'."),
        ({"on": "tol", "value": "1"}, "reward.0.on: Unknown value 'tol'."),
        ({"evaluation": "a", "potential": True}, "reward.0: Rule 'r': a potential is computed on "
         "calls and credits calls."),
        ({"on": "rollout", "value": "1", "credit_to": "last"}, "reward.0: Rule 'r': credit_to "
         "'last' needs an SQL rule over calls."),
        ({"evaluation": "a", "schema": {"type": 1}}, "reward.0: Rule 'r', schema: "),
        ({"evaluation": "a", "weight": "x", "from": "me"}, "The recipe: 2 faults:\n  "
         "reward.0.from: Unknown value 'me'."),
    ],
)  # fmt: skip
def test_a_faulty_reward_is_refused_with_its_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecipe) as refused:
        recipe(**keys)
    assert message in str(refused.value)
