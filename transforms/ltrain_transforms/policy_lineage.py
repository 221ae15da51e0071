"""The lineage of a policy version: the version, its ancestors, and the training data of each.

The ledger of a version is the file `rollouts.parquet` beside its `policy.json`: the rollouts that
made it from its parent. The set of a lineage is the union of its ledgers, and of those of the
versions that were taken back: what made a bad version is not trained on once more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import polars as pl

from ltrain_transforms.deployment_file import find_retired
from ltrain_transforms.policy_file import (
    LEDGER,
    PolicyVersion,
    find_version,
    has_version,
    read_lineage,
)

LEDGER_SCHEMA = pl.Schema({"rollout": pl.String()})
"""Columns of a ledger: the id of a rollout, or of an execution without one."""

OUTDATED = pl.Schema({"execution_id": pl.String(), "reason": pl.String()})

REASONS = {
    "consumed": "the trained policy version, an ancestor of it, or a version that was taken back "
    "was trained on it already; `ltrain run --once --again` trains on it once more",
    "not_ancestor": "a version sampled it that is neither the trained policy version nor an "
    "ancestor of it",
    "stale": "the version that sampled one of its calls is more than train.max_staleness steps "
    "along `parent` behind the trained policy version",
}
"""Why an execution is outdated for a lineage: no version of it is trained on the execution."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """One policy version and its ancestors."""

    policy: str
    versions: tuple[int, ...]
    """The version, its parent, and further ancestors: the index is the distance along `parent`."""
    ledgers: tuple[tuple[int, Path], ...] = ()
    """The versions that have a ledger, and the ledgers; also those that were taken back."""
    removed: tuple[int, ...] = ()
    """The versions whose weights were removed."""

    @property
    def version(self) -> int:
        """The version itself."""
        return self.versions[0]

    @classmethod
    def read(cls, folder: Path, number: int, *, again: bool = False) -> Self:
        """Read the lineage of a version of the policy in `folder`.

        Args:
            again: leave out the ledgers, so that no rollout counts as consumed.

        Raises:
            BadPolicyFile: when a `policy.json` cannot be read.
        """
        lineage = list(read_lineage(folder, number))
        versions = [each.version if isinstance(each, PolicyVersion) else each for each in lineage]
        trained = {*versions, *find_retired(folder)}
        found = ((each, find_version(folder, each)) for each in sorted(trained))
        ledgers = [(each, path / LEDGER) for each, path in found if path is not None]
        existing = [] if again else [(each, path) for each, path in ledgers if path.is_file()]
        removed = tuple(each for each in versions if not has_version(folder, each))
        return cls(folder.name, tuple(versions), tuple(existing), removed)

    def consumed(self, rollouts: pl.Series) -> pl.DataFrame:
        """Return `rollout` and `version` of those of `rollouts` that trained the lineage.

        `version` is the latest that was trained on it.
        """
        wanted = pl.col("rollout").is_in(rollouts.implode())
        parts = [
            pl.scan_parquet(path).filter(wanted).select("rollout", version=pl.lit(number, pl.Int64))
            for number, path in self.ledgers
        ]
        empty = pl.LazyFrame(schema={**LEDGER_SCHEMA, "version": pl.Int64()})
        latest = pl.concat([empty, *parts]).group_by("rollout").agg(pl.col("version").max())
        return latest.sort("rollout").collect()

    def outdated(
        self, executions: pl.DataFrame, calls: pl.DataFrame, max_staleness: int
    ) -> pl.DataFrame:
        """Return the `OUTDATED` executions, which must not train the version.

        Args:
            executions: `execution_id` and `rollout_id`.
            calls: `execution_id`, `policy` and `policy_version` of trained calls.
            max_staleness: largest distance of the version that sampled a call.
        """
        versions = pl.DataFrame(
            {"policy_version": self.versions, "distance": range(len(self.versions))},
            schema={"policy_version": pl.Int32, "distance": pl.Int64},
        )
        sampled = (
            calls.filter(policy=self.policy)
            .drop_nulls("policy_version")
            .join(versions, "policy_version", "left")
            .group_by("execution_id")
            .agg(foreign=pl.col("distance").is_null().any(), distance=pl.col("distance").max())
        )
        rollouts = executions.select("execution_id", rollout=rollout_name())
        consumed = self.consumed(rollouts["rollout"])["rollout"]
        reason = (
            pl.when(pl.col("rollout").is_in(consumed.implode())).then(pl.lit("consumed"))
            .when("foreign").then(pl.lit("not_ancestor"))
            .when(pl.col("distance") > max_staleness).then(pl.lit("stale"))
        )  # fmt: skip
        judged = rollouts.join(sampled, "execution_id", "left", maintain_order="left")
        named = judged.select("execution_id", reason=reason)
        return named.drop_nulls("reason").cast(OUTDATED)


def rollout_name() -> pl.Expr:
    """Return the id by which a ledger knows an execution or a training row."""
    return pl.coalesce("rollout_id", "execution_id")


def write_ledger(directory: Path, rollouts: Iterable[str]) -> None:
    """Write the ledger of a version into its directory."""
    names = pl.DataFrame({"rollout": sorted(set(rollouts))}, schema=LEDGER_SCHEMA)
    names.write_parquet(directory / LEDGER, compression="zstd")
