"""The report on a dataset: its content and its lineage."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from ltrain_instrument.errors import UnknownName
from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets import KEYS, Dataset, alarm_messages
from ltrain_transforms.reports.report import (
    Cell,
    Fact,
    Facts,
    Grid,
    Histogram,
    Part,
    Report,
    join_names,
)
from ltrain_transforms.samples import count_savings


def dataset_report(dataset: Dataset, trained: Fact = ()) -> Report:
    """Return the report on the content and lineage of a dataset.

    Args:
        trained: the policy versions that were trained on it, or why they are not known.
    """
    manifest: dict[str, Any] = dataset.manifest
    unknown = tuple(unknown_names(dataset))
    prompts = tuple(count_prompts(dataset.scan("calls")).iter_rows())
    alarms = tuple(alarm_messages(manifest.get("alarms", {})))  # older datasets have no alarms
    values = _values(dataset)
    parts: tuple[Part, ...] = (
        Facts("Lineage", (*lineage_facts(manifest), *((("trained", trained),) if trained else ()))),
        *((Facts("Unknown names in the recipe", unknown),) if unknown else ()),
        *((Facts("Alarms", alarms),) if alarms else ()),
        Grid("Rows", ("table", "rows"), tuple(_rows(dataset))),
        _executions(dataset),
        *_histograms(values),
        Grid("Rewards by rule", RULES, tuple(_rules(dataset)), "none"),
        Grid("Distribution", NUMBERS, tuple(_numbers(values))),
        Grid("Tokens", ("rows", "count"), tuple(manifest.get("token_sources", {}).items())),
        Grid("Merging", ("what", "count"), tuple(_merging(dataset).items())),
        *((Grid(PROMPTS, ("prompt", "calls"), prompts),) if prompts else ()),
        Grid("Policies", ("policy", "versions sampled"), tuple(_policies(manifest))),
        drop_counts(dataset.drops),
    )
    return Report(f"dataset {dataset.id}", str(dataset.path), parts, manifest)


def _rows(dataset: Dataset) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of each table; spans that describe no call are counted apart from drops."""
    others = dataset.other_spans
    for name in KEYS:
        yield name, dataset.counts[name] - (others if name == "drops" else 0)
    yield "other spans", others


def drop_counts(rows: pl.DataFrame) -> Grid:
    """Count drops by stage and reason."""
    keys = ("stage", "reason")
    counted = (
        rows.group_by(*keys, of_writer())
        .agg(count=pl.len(), meaning=pl.col("detail").min())
        .sort(*keys, "meaning")
    )
    columns = ("stage", "reason", "count", "meaning")
    return Grid("Drops", columns, tuple(counted.select(columns).iter_rows()))


def of_writer() -> pl.Expr:
    """Return the detail of a drop that names an unknown writer of spans; null for others."""
    return pl.when(pl.col("reason") == "unknown_dialect").then("detail").alias("writer")


def lineage_facts(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each input of a dataset."""
    yield "store", str(manifest["store"])
    yield (
        "watermark",
        f"{manifest['watermark']}: when the latest of its spans was stored",
    )
    yield "selected", join_names([f"{k} {v}" for k, v in manifest["parameters"].items()])
    yield "recipe", str(manifest["recipe_digest"])
    yield "task files", join_names(manifest["task_files"])
    yield "reward functions", join_names(manifest["rewards"])
    for name, served in manifest.get("served", {}).items():
        template = "serve.chat_template" if served["chat_template"] else "the model's template"
        yield "rendered", f"calls of {name} without token ids, by {template}"
    if rendered := manifest.get("rendered"):
        left_out = join_names([f"{n} {reason}" for reason, n in rendered["left_out"].items()])
        rows = quantity(rendered["rows"], "rendered row")
        yield "bias", f"{rows}, left out: {left_out}. {rendered['bias']} ({rendered['measured']})"
    yield "base", join_names([f"{k} {v[:16]}" for k, v in manifest["base"].items()])


def _policies(manifest: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    for name, versions in manifest["policy_versions"].items():
        yield name, join_names(versions)


def _executions(dataset: Dataset) -> Grid:
    """Count executions by run, mode, wave and outcome."""
    keys = ["run_id", "mode", "wave", "outcome"]
    counted = (
        dataset.scan("executions")
        .group_by(keys)
        .agg(count=pl.len())
        .sort(keys, nulls_last=True)
        .collect()
    )
    columns = ("run", "mode", "wave", "outcome", "executions")
    return Grid("Executions", columns, tuple(counted.iter_rows()))


NUMBERS = ("of", "count", "min", "10%", "median", "mean", "90%", "max")


RULES = ("rule", "source", "weight", "rewards", "sum", "mean")


def _rules(dataset: Dataset) -> Iterator[tuple[Cell, ...]]:
    """Yield what each rule gave, with its weight in the recipe."""
    recipe = dataset.manifest["recipe"]
    weights = {rule.get("name"): rule.get("weight") for rule in recipe["reward"]}
    value = pl.col("value")
    counted = (
        dataset.scan("rewards")
        .group_by("rule", "source")
        .agg(count=pl.len(), sum=value.sum(), mean=value.mean())
        .sort("rule", "source")
        .collect()
    )
    for rule, source, count, total, mean in counted.iter_rows():
        yield rule, source, weights.get(rule), count, total, mean


SHOWN = ("outcome of an execution", "advantage of a call", "trained tokens of a row")
"""The values that have a histogram."""
BINS = 24
"""Intervals of a histogram."""


def _values(dataset: Dataset) -> dict[str, pl.Series]:
    """Return rewards, advantages and lengths by name."""
    on_execution = pl.col("call_id").is_null()
    outcome = pl.col("value").sum()
    outcomes = dataset.scan("rewards").filter(on_execution).group_by("execution_id").agg(outcome)
    samples = dataset.scan("samples")
    mask = pl.col("response_mask")
    columns = {
        "outcome of an execution": outcomes.select("value"),
        "reward of a call": dataset.scan("transitions").select("reward"),
        "advantage of a call": dataset.scan("transitions").select("advantage"),
        "prompt tokens of a row": samples.select(pl.col("prompt_ids").list.len()),
        "response tokens of a row": samples.select(mask.list.len()),
        "trained tokens of a row": samples.select(mask.list.sum().cast(pl.Int64)),
        "calls of a row": samples.select(pl.col("transition_ids").list.len()),
    }
    return {name: column.collect().to_series() for name, column in columns.items()}


def _histograms(values: Mapping[str, pl.Series]) -> Iterator[Histogram]:
    """Yield the histogram of each of `SHOWN` that has two values or more."""
    for name in SHOWN:
        numbers = values[name].cast(pl.Float64).drop_nulls().drop_nans()
        low, high = numbers.min(), numbers.max()
        if not isinstance(low, float) or not isinstance(high, float) or low == high:
            continue
        width = (high - low) / BINS
        places = ((numbers - low) / width).floor().clip(0, BINS - 1).cast(pl.Int64)
        counts = Counter(places.to_list())
        bins = ((low + at * width, low + (at + 1) * width, counts[at]) for at in range(BINS))
        yield Histogram(name.capitalize(), name, tuple(bins))


def _numbers(values: Mapping[str, pl.Series]) -> Iterator[tuple[Cell, ...]]:
    """Yield the distribution of each value."""
    for name, numbers in values.items():
        yield name, *_distribution(numbers)


def _distribution(values: pl.Series) -> tuple[Cell, ...]:
    numbers = values.cast(pl.Float64)
    quantiles = (numbers.quantile(0.1), numbers.median(), numbers.mean(), numbers.quantile(0.9))
    ordered = (numbers.min(), *quantiles, numbers.max())
    return (len(numbers), *(_number(number) for number in ordered))


def _merging(dataset: Dataset) -> dict[str, int]:
    """Count the tokens that merging saved and why rows begin, one file at a time."""
    total: Counter[str] = Counter()
    for path in sorted((dataset.path / "samples").glob("*.parquet")):
        total.update(count_savings(pl.read_parquet(path, columns=MERGED)))
    return {name.replace("_", " "): count for name, count in sorted(total.items())}


MERGED = [
    *("prompt_ids", "response_ids", "response_mask"),
    *("call_offsets", "transition_ids", "begins"),
]


PROMPTS = "Prompts under serve.continue_tokens"
"""The title of the counts of calls by prompt."""


def count_prompts(calls: pl.LazyFrame) -> pl.DataFrame:
    """Count the `calls` with each `prompt` under `serve.continue_tokens`; none if it was off.

    A `prompt` is `continued`, `first call` for one that repeats no answer, or the reason why it is
    the plain one.
    """
    kinds = pl.when(pl.col("continued") > 0).then(pl.lit("continued"))
    counted = (
        calls.filter(pl.col("continued").is_not_null())
        .group_by(prompt=kinds.otherwise(pl.col("not_continued").fill_null("first call")))
        .agg(calls=pl.len().cast(pl.Int64))
    )
    return counted.sort("calls", "prompt", descending=[True, False]).collect()


def _number(value: Any) -> float | None:
    if value is None:
        return None
    # above 1e15 not every integer is a float
    integer = float(value).is_integer() and abs(value) < 1e15
    return int(value) if integer else float(value)


def trained_tokens(dataset: Dataset) -> int:
    """Return the number of tokens with a loss."""
    mask = pl.col("response_mask").list.sum()
    return int(dataset.scan("samples").select(mask.sum()).collect().item() or 0)


def unknown_names(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield each key of the recipe with an unknown name, and a sentence with the known names.

    These are warnings: a name may be absent from one wave and present in the next.
    """
    recipe: dict[str, Any] = dataset.manifest["recipe"]
    llm_calls = dataset.scan("calls").filter(kind="llm")
    known = {name: _unique(llm_calls, name) for name in ("policy", "agent", "node")}
    for policy in recipe["policy"]:
        if known["policy"]:  # empty if no call passed the gateway
            yield from _unknown("policy.name", "policy", [policy["name"]], known["policy"])
        agents = known["agent"] | known["node"]
        yield from _unknown("policy.agents", "agent or node", policy["agents"], agents)
        yield from _unknown("policy.nodes", "node", policy["nodes"], known["node"])
    step = recipe["credit"]["step"] or {"state": []}
    if step["state"]:
        variables = _unique(dataset.scan("states"), "variable")
        yield from _unknown("credit.step.state", "variable", step["state"], variables)


def _unique(rows: pl.LazyFrame, column: str) -> set[str]:
    return set(rows.select(pl.col(column).unique().drop_nulls()).collect().to_series())


def _unknown(key: str, kind: str, names: list[str], known: set[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        if name not in known:
            yield key, str(UnknownName(kind, name, known or {"none is there"}))
