"""The rows of a dataset that a policy version is trained on, and the rollouts that are left out.

The build of a dataset for a version leaves outdated rollouts out before credit. The credit of any
other dataset is already assigned, so a group with an outdated rollout is left out as a whole.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from ltrain_train.errors import NothingToTrain
from ltrain_train.policy import Policies, Reference, find_weights
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.policy_lineage import REASONS, Lineage, rollout_name
from ltrain_transforms.rendering import RENDERED

IN_OUTDATED_GROUP = "outdated_group"
"""The reason of a rollout that is left out only because of another one of its group."""

NO_WEIGHTS = "no_weights"
"""The reason of a rendered row of a version whose weights were removed."""

GROUP = pl.coalesce("group_id", "execution_id")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The rollouts of a dataset that a version is not trained on."""

    policy: str
    rollouts: int
    """Rollouts of the dataset that count, those that are left out included."""
    reasons: Mapping[str, int]
    """Number of rollouts by reason."""
    consumed_by: Mapping[int, int]
    """Number of consumed rollouts by the version that was trained on them."""

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each reason."""
        versions = ", ".join(f"v{each} on {n}" for each, n in sorted(self.consumed_by.items()))
        explanations = {
            "consumed": f"policy '{self.policy}' was trained on them before ({versions}). Run new "
            "rollouts, or add --again to train on them once more",
            "not_ancestor": "a version sampled them that the trained one does not descend from. "
            "Run new rollouts",
            "stale": "they are stale. Raise train.max_staleness, or run new rollouts",
            IN_OUTDATED_GROUP: "another rollout of their group is, and the dataset's advantages "
            "compare them",
            NO_WEIGHTS: "their tokens are rendered, and the weights of the version that answered, "
            "which compute their log-probabilities, were removed. Raise train.keep_versions",
        }
        for reason, explanation in explanations.items():
            if count := self.reasons.get(reason):
                yield f"{count} of {self.rollouts} rollouts are left out: {explanation}."


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows of a dataset a version is trained on."""

    dataset: Dataset
    policy: str
    outdated: pl.DataFrame
    """`OUTDATED`: the executions of the dataset's rows that are outdated for the version."""
    groups: pl.Series
    """Their groups, which are left out."""
    removed: tuple[int, ...]
    """The versions of the lineage whose weights were removed: their rendered rows are left out."""
    left_out: LeftOut

    def scan(self) -> pl.LazyFrame:
        """Return the rows, which are read when the frame is collected."""
        return self._scan_kept().filter(~_has_version(self.removed))

    def scan_without_weights(self) -> pl.LazyFrame:
        """Return the rows that are left out because their version has no weights."""
        return self._scan_kept().filter(_has_version(self.removed))

    def _scan_kept(self) -> pl.LazyFrame:
        own = pl.col("policy") == self.policy
        kept = ~GROUP.is_in(self.groups.implode())
        return self.dataset.scan("samples").filter(own, kept)


def _has_version(versions: Collection[int]) -> pl.Expr:
    """Return whether a row is rendered, and one of `versions` answered one of its calls."""
    answered = pl.col("call_versions").list.eval(pl.element().is_in(list(versions))).list.any()
    return (pl.col("tokens") == RENDERED) & answered.fill_null(False)


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The rows that a version is trained on."""

    path: Path
    """Parquet file or folder."""
    rollouts: tuple[str, ...]
    """Ids of their rollouts, for the version's ledger."""
    left_out: LeftOut
    staleness: Mapping[str, float]
    """`staleness_mean` and `staleness_max` over their calls: steps along `parent` from the trained
    version to the one that sampled the call."""
    versions: tuple[int, ...] = ()
    """The versions besides the trained one that answered calls of rendered rows."""

    def find_weights(self, policies: Policies) -> dict[int, Reference]:
        """Return the weights of `versions`.

        Raises:
            BadModel: when they are damaged.
        """
        policy = self.left_out.policy
        return {version: find_weights(policies, policy, version) for version in self.versions}


def find_rows(dataset: Dataset, lineage: Lineage, max_staleness: int) -> RowSelection:
    """Find the rows of `dataset` that the version of `lineage` is trained on; there may be none."""
    transitions, executions = dataset.table("transitions"), dataset.table("executions")
    compared = executions.join(transitions, "execution_id", "semi")
    outdated = lineage.outdated(compared, transitions, max_staleness)
    groups = _groups_of(outdated, transitions)
    left_out = _count_left_out(dataset, lineage, outdated, groups, transitions, executions)
    selection = RowSelection(dataset, lineage.policy, outdated, groups, lineage.removed, left_out)
    executions = selection.scan_without_weights().select("execution_id").unique().collect()
    reasons = Counter(left_out.reasons) + Counter({NO_WEIGHTS: executions.height})
    return replace(selection, left_out=replace(left_out, reasons=reasons))


def select_rows(dataset: Dataset, lineage: Lineage, max_staleness: int) -> TrainingRows:
    """Return the rows of `dataset` that the version of `lineage` is trained on, as a file.

    Raises:
        NothingToTrain: when there are none.
    """
    selection = find_rows(dataset, lineage, max_staleness)
    samples, rows = dataset.path / "samples", selection.scan()
    names = rows.select(rollout_name()).collect().to_series()
    if names.is_empty():
        raise NothingToTrain(_no_rows_message(dataset, selection.left_out))
    if len(names) != dataset.counts["samples"]:
        samples = dataset.path.with_name(f"{dataset.path.name}.{lineage.policy}.parquet")
        rows.collect().write_parquet(samples, compression="zstd")
    rollouts, staleness = tuple(names.unique().sort()), _measure_staleness(rows, lineage)
    versions = _rendered_versions(rows, lineage.version)
    return TrainingRows(samples, rollouts, selection.left_out, staleness, versions)


def _rendered_versions(rows: pl.LazyFrame, trained: int) -> tuple[int, ...]:
    """Return the versions besides the trained one that answered calls of rendered rows."""
    calls = rows.filter(tokens=RENDERED).select(version=pl.col("call_versions").explode())
    versions = calls.filter(pl.col("version") != trained).unique().collect().to_series()
    return tuple(versions.sort())


def _measure_staleness(rows: pl.LazyFrame, lineage: Lineage) -> dict[str, float]:
    """Return the staleness of the rows' calls; empty if no call names its version."""
    calls = rows.select(version=pl.col("call_versions").explode())
    distance = pl.col("version").replace_strict(
        list(lineage.versions), range(len(lineage.versions)), default=None, return_dtype=pl.Int64
    )
    measured = calls.select(staleness_mean=distance.mean(), staleness_max=distance.max()).collect()
    return {
        name: float(value)
        for name, value in measured.row(0, named=True).items()
        if value is not None
    }


def _groups_of(outdated: pl.DataFrame, transitions: pl.DataFrame) -> pl.Series:
    return transitions.join(outdated, "execution_id", "semi").select(GROUP.unique()).to_series()


def _count_left_out(
    dataset: Dataset,
    lineage: Lineage,
    outdated: pl.DataFrame,
    groups: pl.Series,
    transitions: pl.DataFrame,
    executions: pl.DataFrame,
) -> LeftOut:
    at_build = dataset.drops.filter(pl.col("reason").is_in(list(REASONS)))
    dropped = at_build.select("reason", execution_id="id")
    consumed = pl.concat([outdated.select("reason", "execution_id"), dropped])
    consumed = executions.join(consumed.filter(reason="consumed"), "execution_id", "semi")
    versions = lineage.consumed(consumed.select(rollout_name()).to_series())["version"]
    whole = transitions.filter(GROUP.is_in(groups.implode()))["execution_id"].n_unique()
    reasons = Counter([*outdated["reason"], *dropped["reason"]])
    reasons += Counter({IN_OUTDATED_GROUP: whole - outdated.height})  # without counts of 0
    rollouts = transitions["execution_id"].n_unique() + dropped.height
    return LeftOut(lineage.policy, rollouts, reasons, Counter(versions.to_list()))


def _no_rows_message(dataset: Dataset, left_out: LeftOut) -> str:
    counts = Counter(dataset.drops["reason"].to_list())
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.most_common()) or "none"
    return " ".join(
        [
            f"Dataset {dataset.id} has no row to train on.",
            *left_out.sentences(),
            f"Drops by reason: {reasons}. `ltrain show {dataset.path}` lists them.",
        ]
    )
