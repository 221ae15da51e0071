"""The reference of a recipe: the base's weights, a version, or no second model."""

from pathlib import Path

import pytest
from tests.train.gateway.conftest import write_adapter, write_model

from ltrain_train.errors import BadRun, UnknownVersion
from ltrain_train.policy import Policies, Reference, find_reference, held_reference
from ltrain_transforms.recipe import Train


@pytest.fixture
def policies(tmp_path: Path) -> Policies:
    """Return the policies `sql`, whose version 1 is an adapter, and `large`."""
    policies = Policies(tmp_path / "home")
    policies.register("sql", write_model(tmp_path / "model"))
    policies.register_files("sql", write_adapter(tmp_path / "adapter"), parent=0, base=0)
    policies.register("large", write_model(tmp_path / "large", size=8))
    return policies


@pytest.mark.parametrize(
    "train", [Train(), Train(reference="sql@1"), Train(kl_coefficient=0.1)], ids=str
)
def test_no_second_model_is_loaded_without_need(policies: Policies, train: Train) -> None:
    assert find_reference(policies, train, "sql", 0) is None


def test_without_an_adapter_the_base_is_loaded_a_second_time(policies: Policies) -> None:
    train = Train(kl_coefficient=0.1, lora_rank=0)
    assert find_reference(policies, train, "sql", 0) == Reference(policies.path("sql", 0))


def test_a_version_is_loaded_with_its_adapter_and_kept_meanwhile(policies: Policies) -> None:
    train = Train(kl_coefficient=0.1, reference="sql@1")
    expected = Reference(policies.path("sql", 0), policies.path("sql", 1))
    assert find_reference(policies, train, "sql", 0) == expected
    with held_reference(policies, train):
        assert policies.is_held("sql", 1)
    assert not policies.is_held("sql", 1)


def test_a_version_that_does_not_fit_is_refused(policies: Policies) -> None:
    def find(reference: str) -> None:
        find_reference(policies, Train(kl_coefficient=0.1, reference=reference), "sql", 0)

    with pytest.raises(BadRun, match=r"'large@0' has not the tensors of v0 of 'sql'\. Name a"):
        find("large@0")
    with pytest.raises(UnknownVersion, match="sql"):
        find("sql@7")
