"""The versions of a policy by the names and times under which other servers serve it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl

from ltrain_transforms.policy_file import read_promotions
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rendering.template import BadTokenizer
from ltrain_transforms.tables import lacks_token_ids


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A policy whose calls without token ids are rendered."""

    name: str
    tokenizer: Path
    """A model directory of the policy: all its versions have the same tokenizer."""
    chat_template: str | None = None
    """The text of the chat template; None: that of the tokenizer."""
    served_as: Mapping[str, int] | None = None
    """Further names under which servers serve the policy, with the version of each."""
    promotions: tuple[tuple[int, int], ...] = ()
    """When a version became current, in Unix nanoseconds, and the version; in order of time."""

    @classmethod
    def from_manifest(cls, name: str, tokenizer: Path, fields: Mapping[str, Any]) -> Self:
        """Return the policy by which a dataset was built."""
        promotions = tuple((at, version) for at, version in fields["promotions"])
        return cls(name, tokenizer, fields["chat_template"], fields["served_as"], promotions)

    def describe(self) -> dict[str, Any]:
        """Return the fields that a manifest records; its `base` has the tokenizer's digest."""
        return {
            "chat_template": self.chat_template,
            "served_as": dict(self.served_as or {}),
            "promotions": [list(each) for each in self.promotions],
        }

    def version(self) -> pl.Expr:
        """Return the version by the `model` and the `start` of a call; null: of another model.

        The policy's name is the version that was current then, before the first promotion version
        0. `NAME@3` is version 3.
        """
        model = pl.col("model")
        times = pl.lit(pl.Series([at for at, _ in self.promotions], dtype=pl.Int64))
        numbers = pl.lit(pl.Series([0, *(each for _, each in self.promotions)], dtype=pl.Int32))
        current = numbers.gather(times.search_sorted(pl.col("start"), side="right"))
        numbered = model.str.extract(rf"^{re.escape(self.name)}@(\d+)$")
        version = pl.coalesce(
            numbered.cast(pl.Int32, strict=False), pl.when(model == self.name).then(current)
        )
        for name, number in (self.served_as or {}).items():
            version = pl.when(model == name).then(pl.lit(number, pl.Int32)).otherwise(version)
        return version


def find_served(
    recipe: Recipe, policies: Path, folder: Path, models: Mapping[str, Path] | None = None
) -> tuple[ServedPolicy, ...]:
    """Return the trained policies of a recipe whose calls without token ids are rendered.

    Args:
        policies: the home's folder of policies.
        folder: folder of the recipe's files.
        models: directories of the policies that have no version yet.

    Raises:
        BadTokenizer: when a policy has no model, or the recipe's chat template cannot be read.
    """
    rendered = [each for each in recipe.trained if each.token_source == "rendered"]
    template = _read_template(recipe.serve.chat_template, folder) if rendered else None
    found: list[ServedPolicy] = []
    for policy in rendered:
        own = policies / policy.name
        tokenizer = own / "v0" if (own / "v0").is_dir() else (models or {}).get(policy.name)
        if tokenizer is None:
            raise BadTokenizer(
                f"The recipe renders calls of policy '{policy.name}', and {policies} has no model "
                f"of it. Register one: `ltrain serve MODEL --policy {policy.name}`, or `ltrain run "
                "--once --model MODEL`."
            )
        promotions = tuple(read_promotions(own))
        found.append(
            ServedPolicy(policy.name, tokenizer.absolute(), template, policy.served_as, promotions)
        )
    return tuple(found)


def _read_template(file: str | None, folder: Path) -> str | None:
    if file is None:
        return None
    try:
        return (folder / file).read_text()
    except OSError as error:
        raise BadTokenizer(
            f"serve.chat_template = '{file}' cannot be read: {error.strerror}. Name a Jinja file."
        ) from error


def sampled_version(served: Sequence[ServedPolicy]) -> pl.Expr:
    """Return the `policy_version` of a call, or that of `served` for a call without token ids.

    Reads the columns of `calls`, with the trained policy in `policy`.
    """
    version = pl.lit(None, pl.Int32)
    for policy in served:
        is_rendered = (pl.col("policy") == policy.name) & lacks_token_ids()
        version = pl.when(is_rendered).then(policy.version()).otherwise(version)
    return pl.coalesce("policy_version", version)
