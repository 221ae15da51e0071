"""Which execution a span or a log record belongs to.

A span belongs to the execution whose id it carries; else to that of its trace, where the trace has
one; else to that of the nearest span above it; else to that of the span it links to, and with it
the rest of its trace; else, by recipe, to its session or its trace. A log record belongs to the
execution whose id it carries, else to that of its span, else to that of its trace.
What belongs to none is a drop, `unresolved`.
"""

import polars as pl

from ltrain_transforms.tables import DROPS, LOGS

REASONS = {
    "unresolved": "it names no execution, and its trace belongs to several or to none",
    "duplicate_span": "another span with its id counts: that of a trusted sender, else the first",
}
"""Of spans and log records, stage `spans`."""


def resolve(spans: pl.DataFrame, execution: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `execution_id` of `SPANS`; give the spans that have one, and the others as `DROPS`.

    Args:
        execution: what is an execution where no rollout is named: `session` or `trace`; with
            `rollout` a span that belongs to none is left out.
    """
    key = ["trace_id", "span_id"]
    # of two the trusted one counts, else who knows a span's id could put another in its place
    again = (~pl.col("trusted").fill_null(False)).rank("ordinal").over(key) > 1
    once = spans.filter(~again)
    found = _own(once)
    for rule in (_of_trace, _of_ancestor, _of_link, _of_trace, _of_ancestor):
        if found["execution_id"].null_count():
            found = rule(found)
    if execution != "rollout":
        found = _of_session(found, execution)
    known = pl.col("execution_id").is_not_null()
    lost = _dropped(found.filter(~known), "span_id", "unresolved")
    doubled = _dropped(spans.filter(again), "span_id", "duplicate_span")
    return found.filter(known).sort("execution_id", "start", "span_id"), pl.concat([lost, doubled])


def resolve_logs(logs: pl.DataFrame, spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `execution_id` of `LOGS`; give the records that have one, and the others as `DROPS`.

    Args:
        spans: `SPANS` that are resolved; an execution without any of them is none.
    """
    of_span = spans.select("trace_id", "span_id", in_span="execution_id").unique(
        ["trace_id", "span_id"], keep="first", maintain_order=True
    )
    only = pl.col("execution_id").unique()
    of_trace = spans.group_by("trace_id").agg(in_trace=pl.when(only.len() == 1).then(only.first()))
    found = (
        logs.join(of_span, ["trace_id", "span_id"], "left", maintain_order="left")
        .join(of_trace, "trace_id", "left", maintain_order="left")
        .with_columns(execution_id=pl.coalesce("execution_id", _NAMED, "in_span", "in_trace"))
    )
    known = pl.col("execution_id").is_in(spans["execution_id"].implode()).fill_null(False)
    lost = _dropped(found.filter(~known), "span_id", "unresolved")
    return LOGS.select(found.filter(known).lazy()).collect(), lost


_NAMED = pl.concat_str("rollout_id", pl.col("attempt").fill_null("1"), separator=".")


def _own(spans: pl.DataFrame) -> pl.DataFrame:
    """Take the id that a span carries; one without an attempt is of its trace's, or of the only."""
    within = spans.with_columns(
        pl.coalesce(
            "attempt",
            *(
                pl.when(pl.col("attempt").drop_nulls().n_unique() == 1)
                .then(pl.col("attempt").drop_nulls().first())
                .over("rollout_id", *more)
                for more in (("trace_id",), ())
            ),
        ).alias("attempted")
    )
    named = pl.concat_str("rollout_id", pl.col("attempted").fill_null("1"), separator=".")
    return within.with_columns(execution_id=pl.coalesce("execution_id", named)).drop("attempted")


def _of_trace(spans: pl.DataFrame) -> pl.DataFrame:
    known = pl.col("execution_id").drop_nulls()
    only = pl.when(known.n_unique() == 1).then(known.first()).over("trace_id")
    return spans.with_columns(execution_id=pl.coalesce("execution_id", only))


def _of_ancestor(spans: pl.DataFrame) -> pl.DataFrame:
    missing = spans["execution_id"].null_count()
    while missing:
        known = spans.filter(pl.col("execution_id").is_not_null()).select(
            "trace_id", parent_id="span_id", there="execution_id"
        )
        joined = spans.join(known, ["trace_id", "parent_id"], "left", maintain_order="left")
        spans = joined.with_columns(execution_id=pl.coalesce("execution_id", "there")).drop("there")
        missing, before = spans["execution_id"].null_count(), missing
        if missing == before:
            break
    return spans


def _of_link(spans: pl.DataFrame) -> pl.DataFrame:
    """Take the execution of the first linked span that has one."""
    known = (
        spans.filter(pl.col("execution_id").is_not_null())
        .select(link="span_id", there="execution_id")
        .unique("link", keep="first", maintain_order=True)
    )
    numbered = spans.with_row_index("row")
    linking = numbered.filter(pl.col("execution_id").is_null()).select("row", link="links")
    found = (
        linking.explode("link", empty_as_null=True)
        .join(known, "link", maintain_order="left")
        .group_by("row", maintain_order=True)
        .agg(pl.col("there").first())
    )
    joined = numbered.join(found, "row", "left", maintain_order="left")
    return joined.with_columns(execution_id=pl.coalesce("execution_id", "there")).drop(
        "row", "there"
    )


def _of_session(spans: pl.DataFrame, execution: str) -> pl.DataFrame:
    other = [pl.col("trace_id")]
    if execution == "session":
        other.insert(0, pl.col("session_id").drop_nulls().first().over("trace_id"))
    return spans.with_columns(execution_id=pl.coalesce("execution_id", *other))


def _dropped(rest: pl.DataFrame, id_column: str, reason: str) -> pl.DataFrame:
    drops = rest.select(
        stage=pl.lit("spans"),
        id=pl.col(id_column).fill_null(""),
        reason=pl.lit(reason),
        detail=pl.lit(REASONS[reason]),
    )
    return DROPS.select(drops.lazy()).collect()
