"""The record of optimizer steps: a span each, and the metrics of an update."""

from collections.abc import Mapping

import polars as pl
from opentelemetry.trace import Span

from ltrain_instrument import attributes
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.row_values import count_tokens

UPDATE_UNDONE = (
    "The update was undone, because the policy's log-probabilities were not finite after it. Lower "
    "train.learning_rate, or look for extreme advantages in the dataset."
)


def step_attributes(job: Job, version: int, dataset: str) -> dict[str, str | int]:
    """Return the attributes of the span of an optimizer step that name what it trains."""
    return {
        attributes.POLICY_NAME: job.policy,
        attributes.POLICY_VERSION: version,
        attributes.DATASET_ID: dataset,
        attributes.RECIPE_DIGEST: job.recipe,
    }


def record_step(
    span: Span, step: int, rows: pl.DataFrame, metrics: Mapping[str, float], *, undone: bool
) -> None:
    """Set the metrics of an optimizer step on its span; `step` counts those since the base."""
    counts = {
        "step": step,
        "rows": rows.height,
        "tokens": count_tokens(rows),
        "undone": int(undone),
    }
    for name, value in (counts | dict(metrics)).items():
        span.set_attribute(attributes.TRAIN + name, value)


def update_metrics(
    made: list[dict[str, float]], results: list[dict[str, float]], measured: dict[str, float]
) -> dict[str, float]:
    """Return the means over the steps that count, and the sum of `computed_tokens` over all.

    If no step counts, the means are those that were `measured` before the steps.
    """
    names = made[0] if made else ()
    means = measured | {name: sum(step[name] for step in made) / len(made) for name in names}
    return means | {"computed_tokens": sum(metrics["computed_tokens"] for metrics in results)}
