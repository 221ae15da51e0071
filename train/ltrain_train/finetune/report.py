"""The training data of `ltrain sft` and `ltrain dpo`, reported before a model is loaded.

Every execution that was read is trained on, held out, or left out for one reason.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import polars as pl

from ltrain_train.errors import NothingToTrain
from ltrain_train.finetune.source import CONSUMED, HELD_OUT, TRAINED, OfflineSource
from ltrain_train.updates import DataReport, count_left_out

BELOW = "below"
"""The reason of a rollout whose outcome is below the threshold."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The number of all items, of trained and held-out items, and of the others by reason."""

    all: int
    trained: int
    held_out: int
    left_out: Mapping[str, int]

    @classmethod
    def count(cls, sides: pl.Series) -> Self:
        """Count the sides and the reasons of all executions, or of all calls."""
        counts = Counter(sides.to_list())
        trained, held_out = counts.pop(TRAINED, 0), counts.pop(HELD_OUT, 0)
        return cls(len(sides), trained, held_out, dict(counts.most_common()))

    def __str__(self) -> str:
        held_out = f"{self.held_out} held out + " if self.held_out else ""
        left_out = count_left_out(self.left_out)
        return f"{self.all} = {self.trained} to train on + {held_out}{left_out}"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of the rollouts that are trained on or held out; None without any."""

    min: float | None
    mean: float | None
    max: float | None
    highest: float | None
    """The highest outcome of all rollouts that count."""

    def __str__(self) -> str:
        if self.min is None:
            return "none"
        return f"from {self.min:.3f} to {self.max:.3f}, mean {self.mean:.3f}"


@dataclass(frozen=True, slots=True)
class OfflineFiles:
    """The data of one training."""

    source: OfflineSource
    trained: Path
    """Parquet file."""
    held_out: Path
    """Parquet file, which may have no row."""
    rollouts: tuple[str, ...]
    """The rollouts that are trained on, for the version's ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineReport(DataReport):
    """The report of both trainers."""

    executions: Balance
    outcomes: Outcomes
    explanations: Mapping[str, str]
    """The sentence of each reason why an execution or a call is left out."""
    reaches_threshold: bool = True
    """Whether some outcome is high enough."""
    unit: ClassVar[str]
    """The name of the training data: rows or pairs."""

    def facts(self) -> dict[str, str]:
        return {"executions": f"{self.executions}", "outcomes": f"{self.outcomes}"}

    def as_dict(self) -> dict[str, Any]:
        fields = DataReport.as_dict(self)
        del fields["explanations"], fields["reaches_threshold"]
        return fields

    def check(self) -> None:
        """Check that there is something to train on."""
        if not self.trained:
            raise NothingToTrain(
                f"Nothing to train on. {' '.join(self._sentences())} `ltrain show {self.folder}` "
                "shows the dataset."
            )

    def _sentences(self) -> Iterator[str]:
        """Yield a sentence for each reason, the commonest first."""
        if self.executions.held_out:
            yield (
                f"All rows that could be trained on are held out, of {self.executions.held_out} "
                "executions: lower --holdout, or record more tasks."
            )
        for reason, count in self.executions.left_out.items():
            some = f"{count} of {self.executions.all} executions are left out"
            if reason != BELOW:
                explanation = self.explanations.get(reason, "").rstrip(".")
                yield f"{some} as `{reason}`: {explanation}."
            elif self.reaches_threshold:
                yield f"{some}: their outcome is below the threshold."
            else:
                highest = self.outcomes.highest or 0.0
                yield (
                    f"{some}: their outcome is below the threshold. The highest outcome is "
                    f"{highest:g}; `--min {highest:g}` keeps those that have it."
                )


def read_drops(manifest: Mapping[str, Any]) -> pl.DataFrame:
    """Return `id`, `reason` and `detail` of the rows that an export left out, from its manifest."""
    schema = {"id": pl.String, "reason": pl.String, "detail": pl.String}
    return pl.DataFrame(manifest["left_out"], schema)


def explain(source: OfflineSource, drops: pl.DataFrame, rollouts: pl.Series) -> dict[str, str]:
    """Return the sentence of each reason.

    Args:
        drops: `reason` and `detail` of the rows that an export left out.
        rollouts: the selected rollouts; some may be consumed.
    """
    explanations = dict(drops.select("reason", "detail").unique("reason").iter_rows())
    counts = source.lineage.consumed(rollouts).group_by("version").len().sort("version")
    versions = ", ".join(f"v{version} on {count}" for version, count in counts.iter_rows())
    explanations[CONSUMED] = (
        f"policy '{source.plan.policy}' was trained on them before ({versions}). Run new rollouts, "
        "or add --again to train on them once more"
    )
    return explanations


def execution_sides(
    source: OfflineSource, sides: pl.DataFrame, drops: pl.DataFrame, calls: pl.DataFrame
) -> pl.Series:
    """Return the side of each execution of the dataset, or why it is left out.

    Args:
        sides: `execution_id` and `side` of the selected executions.
        drops: `id` and `reason` of the executions and calls that an export left out.
        calls: `execution_id` and `call_id` of the policy's calls.
    """
    reasons = drops.select("id", "reason").unique("id", keep="first")
    of_calls = calls.join(reasons, left_on="call_id", right_on="id")
    commonest = (
        of_calls.group_by("execution_id", "reason").len()
        .sort("execution_id", "len", "reason", descending=[False, True, False])
        .group_by("execution_id", maintain_order=True).first()
    )  # fmt: skip
    executions = source.dataset.table("executions").select("execution_id")
    joined = (
        executions.join(sides.select("execution_id", "side"), "execution_id", "left")
        .join(reasons.rename({"id": "execution_id"}), "execution_id", "left")
        .join(commonest.select("execution_id", of_calls="reason"), "execution_id", "left")
    )
    return joined.select(pl.coalesce("side", "reason", "of_calls").alias("side"))["side"]


def summarize_outcomes(outcomes: pl.DataFrame, sides: pl.DataFrame) -> Outcomes:
    """Summarize the outcomes of the executions that are trained on or held out.

    Args:
        outcomes: `execution_id` and `outcome_reward` of the executions that count.
        sides: as in `execution_sides`.
    """
    used = outcomes.join(sides.filter(pl.col("side") != CONSUMED), "execution_id", "semi")
    column = pl.col("outcome_reward")
    low, mean, high = used.select(low=column.min(), mean=column.mean(), high=column.max()).row(0)
    return Outcomes(low, mean, high, outcomes.select(column.max()).item())
