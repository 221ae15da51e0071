"""The reference of a recipe's KL divergence: a model that is not trained."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ltrain_train.errors import BadRun
from ltrain_train.policy.versions import Policies
from ltrain_train.policy.weights import read_shapes
from ltrain_transforms.recipe import Train


@dataclass(frozen=True, slots=True)
class Reference:
    """A model that a learner loads beside the trained one."""

    weights: Path
    """Its model directory."""
    adapter: Path | None = None
    """An adapter of these weights, which belongs to it."""

    def absolute(self) -> Self:
        """Return the reference with absolute paths."""
        return type(self)(self.weights.absolute(), self.adapter and self.adapter.absolute())


def find_reference(policies: Policies, train: Train, policy: str, base: int) -> Reference | None:
    """Return the reference model of the divergence.

    Args:
        base: its version whose weights the learner loads.

    Returns:
        None if there is no divergence, or if it is from the trained model without its adapter.

    Raises:
        BadModel: when the reference is damaged.
        BadRun: when the reference has not the tensors of the trained policy.
        UnknownVersion: when the version does not exist.
    """
    version = _named_version(train)
    if not train.kl_coefficient or (version is None and train.lora_rank):
        return None
    name, number = version or (policy, base)
    artifact = policies.read_version(name, number).artifact
    found, trained = find_weights(policies, name, number), policies.path(policy, base)
    if artifact == "prompt" or read_shapes(found.weights) != read_shapes(trained):
        raise BadRun(
            f"train.reference = '{train.reference}' has not the tensors of v{base} of '{policy}'. "
            "Name a version of the same model."
        )
    return found


def find_weights(policies: Policies, name: str, number: int) -> Reference:
    """Return the weights of a version, undamaged.

    Raises:
        BadModel: when it is damaged.
        UnknownVersion: when it does not exist.
    """
    path, artifact = policies.verify(name, number), policies.read_version(name, number).artifact
    return Reference(policies.weights_path(name, number), path if artifact == "adapter" else None)


@contextmanager
def held_reference(policies: Policies, train: Train) -> Iterator[None]:
    """Keep the version that the recipe names from being removed while the block runs.

    Raises:
        UnknownVersion: when the version does not exist.
    """
    version = _named_version(train)
    if not train.kl_coefficient or version is None:
        yield
        return
    descriptor = policies.hold(*version)
    try:
        yield
    finally:
        os.close(descriptor)


def _named_version(train: Train) -> tuple[str, int] | None:
    """Return the policy and the version of a reference such as `sql@3`; None for `base`."""
    name, _, number = train.reference.rpartition("@")
    return (name, int(number)) if name else None
