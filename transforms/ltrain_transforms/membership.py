"""Membership: the execution that a span or a log record belongs to.

A span belongs to the execution whose id it carries; else to that of its trace, where the trace has
exactly one; else to that of its nearest ancestor; else to that of the span it links to, and then
the rest of its trace with it; else, if the recipe says so, to its session or its trace. A log
record belongs to the execution whose id it carries, else to that of its span, else to that of its
trace. Spans and records without an execution are drops, `unresolved`.
"""

import polars as pl

from ltrain_transforms.tables import DROPS, LOGS

REASONS = {
    "unresolved": "it names no execution, and its trace belongs to several or to none",
    "duplicate_span": "another span with its id counts: that of a trusted sender, else the first",
}
"""Reasons of drops of spans and log records, stage `spans`."""


def resolve_spans(spans: pl.DataFrame, execution: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `execution_id` of `SPANS`; return the spans that have one, and the others as `DROPS`.

    Args:
        execution: the execution of a span that names no rollout: its `session` or its `trace`; with
            `rollout` it has none.
    """
    key = ["trace_id", "span_id"]
    # the trusted one counts: whoever knows a span's id could otherwise replace that span
    is_duplicate = (~pl.col("trusted").fill_null(False)).rank("ordinal").over(key) > 1
    resolved = _by_own_id(spans.filter(~is_duplicate))
    for resolve in (_by_trace, _by_ancestor, _by_link, _by_trace, _by_ancestor):
        if resolved["execution_id"].null_count():
            resolved = resolve(resolved)
    if execution != "rollout":
        resolved = _by_session(resolved, execution)
    known = pl.col("execution_id").is_not_null()
    unresolved = _to_drops(resolved.filter(~known), "span_id", "unresolved")
    duplicates = _to_drops(spans.filter(is_duplicate), "span_id", "duplicate_span")
    members = resolved.filter(known).sort("execution_id", "start", "span_id")
    return members, pl.concat([unresolved, duplicates])


def resolve_logs(logs: pl.DataFrame, spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `execution_id` of `LOGS`; return the records that have one, and the others as `DROPS`.

    Args:
        spans: resolved `SPANS`; a record of an execution without spans is unresolved.
    """
    of_span = spans.select("trace_id", "span_id", in_span="execution_id").unique(
        ["trace_id", "span_id"], keep="first", maintain_order=True
    )
    only = pl.col("execution_id").unique()
    of_trace = spans.group_by("trace_id").agg(in_trace=pl.when(only.len() == 1).then(only.first()))
    resolved = (
        logs.join(of_span, ["trace_id", "span_id"], "left", maintain_order="left")
        .join(of_trace, "trace_id", "left", maintain_order="left")
        .with_columns(execution_id=pl.coalesce("execution_id", _OWN_ID, "in_span", "in_trace"))
    )
    known = pl.col("execution_id").is_in(spans["execution_id"].implode()).fill_null(False)
    unresolved = _to_drops(resolved.filter(~known), "span_id", "unresolved")
    return LOGS.select(resolved.filter(known).lazy()).collect(), unresolved


_OWN_ID = pl.concat_str("rollout_id", pl.col("attempt").fill_null("1"), separator=".")


def _by_own_id(spans: pl.DataFrame) -> pl.DataFrame:
    """Use the id that a span carries.

    A span without an attempt belongs to the only attempt of its rollout in its trace, else to the
    only attempt of its rollout, else to the first.
    """
    attempted = spans.with_columns(
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
    return attempted.with_columns(execution_id=pl.coalesce("execution_id", named)).drop("attempted")


def _by_trace(spans: pl.DataFrame) -> pl.DataFrame:
    known = pl.col("execution_id").drop_nulls()
    only = pl.when(known.n_unique() == 1).then(known.first()).over("trace_id")
    return spans.with_columns(execution_id=pl.coalesce("execution_id", only))


def _by_ancestor(spans: pl.DataFrame) -> pl.DataFrame:
    missing = spans["execution_id"].null_count()
    while missing:
        known = spans.filter(pl.col("execution_id").is_not_null()).select(
            "trace_id", parent_id="span_id", of_parent="execution_id"
        )
        joined = spans.join(known, ["trace_id", "parent_id"], "left", maintain_order="left")
        spans = joined.with_columns(execution_id=pl.coalesce("execution_id", "of_parent")).drop(
            "of_parent"
        )
        missing, before = spans["execution_id"].null_count(), missing
        if missing == before:
            break
    return spans


def _by_link(spans: pl.DataFrame) -> pl.DataFrame:
    """Use the execution of the first linked span that has one."""
    known = (
        spans.filter(pl.col("execution_id").is_not_null())
        .select(link="span_id", of_link="execution_id")
        .unique("link", keep="first", maintain_order=True)
    )
    numbered = spans.with_row_index("row")
    linking = numbered.filter(pl.col("execution_id").is_null()).select("row", link="links")
    linked = (
        linking.explode("link", empty_as_null=True)
        .join(known, "link", maintain_order="left")
        .group_by("row", maintain_order=True)
        .agg(pl.col("of_link").first())
    )
    joined = numbered.join(linked, "row", "left", maintain_order="left")
    return joined.with_columns(execution_id=pl.coalesce("execution_id", "of_link")).drop(
        "row", "of_link"
    )


def _by_session(spans: pl.DataFrame, execution: str) -> pl.DataFrame:
    other = [pl.col("trace_id")]
    if execution == "session":
        other.insert(0, pl.col("session_id").drop_nulls().first().over("trace_id"))
    return spans.with_columns(execution_id=pl.coalesce("execution_id", *other))


def _to_drops(spans: pl.DataFrame, id_column: str, reason: str) -> pl.DataFrame:
    drops = spans.select(
        stage=pl.lit("spans"),
        id=pl.col(id_column).fill_null(""),
        reason=pl.lit(reason),
        detail=pl.lit(REASONS[reason]),
    )
    return DROPS.select(drops.lazy()).collect()
