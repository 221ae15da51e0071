"""Assign spans and log records to executions.

A span belongs to the first of these that exists:

1. the execution whose id it carries;
2. the only execution of its trace;
3. the execution of its nearest ancestor;
4. the execution of a linked span; the rest of its trace follows it;
5. its session or its trace, where the recipe reads those; in a trace of several sessions, the
   session of its nearest ancestor (see `sessions`).

Where sessions or traces are read, a model call that another trace describes too is placed below the
span of that trace, with the spans below it; if it is the root of its trace, the whole trace follows
(see `strays`). So is a tool's root span that links to the client's span of the call.

A log record belongs to the execution whose id it carries, else to that of its span, else to the
only one of its trace. A span or record without an execution is the drop `unresolved`; feedback on
an execution that has no other span is the drop `unknown_target`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import polars as pl

from ltrain_instrument.attributes import SPAN_EVALUATION
from ltrain_transforms.calls import sessions
from ltrain_transforms.calls.call import Call
from ltrain_transforms.calls.grouping import is_same_tool
from ltrain_transforms.calls.strays import Key, Strays, find_strays, nearest_roots
from ltrain_transforms.dialects import describe
from ltrain_transforms.tables import DROPS, LOGS
from ltrain_transforms.traces import FAILURES, Role, Span, iter_spans

REASONS = {
    "unresolved": "it names no execution, and its trace belongs to several or to none",
    "ambiguous_host": "two instrumentations recorded the call in two traces, and several calls of "
    "the other trace may be it: record with one of them (`LTRAIN_INSTRUMENTORS=library=none`)",
    "unknown_target": "feedback on an execution of which no other span has arrived",
    "duplicate_span": "another span with its id counts: a trusted sender's, else the earliest",
}
"""Reasons of drops of spans and log records, stage `spans`."""


def resolve_spans(
    spans: pl.DataFrame, execution: str, keys: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `execution_id`; return the `SPANS` that have one, and the others as `DROPS`.

    Args:
        execution: the execution of a span that names no rollout: its `session` or its `trace`;
            with `rollout` such a span is left out.
        keys: as in `find_strays`; None: no trace describes a call of another.
    """
    key = ["trace_id", "span_id"]
    # of two spans with one id the trusted one counts: otherwise anyone who knows the id of a span
    # could replace it
    duplicate = (~pl.col("trusted").fill_null(False)).rank("ordinal").over(key) > 1
    if spans.select(key).is_duplicated().any():  # else the order changes nothing
        spans = spans.sort("start", "end", "name", "scope", maintain_order=True)
    once = spans.filter(~duplicate)
    resolved = _by_own_id(once)
    for rule in (_by_trace, _by_ancestor, _by_link, _by_trace, _by_ancestor):
        if resolved["execution_id"].null_count():
            resolved = rule(resolved)
    ambiguous = pl.lit(False)
    strays = Strays(_linked_hosts(once), frozenset())
    if execution != "rollout":
        found = find_strays(once, keys) if keys is not None else strays
        strays = Strays({**strays.hosts, **found.hosts}, found.ambiguous)
        resolved = _by_traffic(_below_hosts(resolved, strays), execution)
        ambiguous = pl.col("ambiguous")
    elif strays.hosts:
        resolved = _below_hosts(resolved, strays).drop("host_trace")
    known = pl.col("execution_id").is_not_null()
    unresolved = pl.concat(
        [
            _drops(resolved.filter(~known & ~ambiguous), "unresolved"),
            _drops(resolved.filter(~known & ambiguous), "ambiguous_host"),
        ]
    )
    duplicates = _drops(spans.filter(duplicate), "duplicate_span")
    assigned = resolved.filter(known).sort("execution_id", "start", "span_id")
    ran = (pl.col("name") != SPAN_EVALUATION).any().over("execution_id")
    without_target = _drops(assigned.filter(~ran), "unknown_target")
    return assigned.filter(ran), pl.concat([unresolved, duplicates, without_target])


def resolve_logs(logs: pl.DataFrame, spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `execution_id`; return the `LOGS` that have one, and the others as `DROPS`.

    Args:
        spans: resolved `SPANS`; only their executions count.
    """
    of_span = spans.select("trace_id", "span_id", in_span="execution_id").unique(
        ["trace_id", "span_id"], keep="first", maintain_order=True
    )
    only = pl.col("execution_id").unique()
    of_trace = spans.group_by("trace_id").agg(in_trace=pl.when(only.len() == 1).then(only.first()))
    resolved = (
        logs.join(of_span, ["trace_id", "span_id"], "left", maintain_order="left")
        .join(of_trace, "trace_id", "left", maintain_order="left")
        .with_columns(execution_id=pl.coalesce("execution_id", _NAMED, "in_span", "in_trace"))
    )
    known = pl.col("execution_id").is_in(spans["execution_id"].implode()).fill_null(False)
    unresolved = _drops(resolved.filter(~known), "unresolved")
    return LOGS.select(resolved.filter(known).lazy()).collect(), unresolved


_NAMED = pl.concat_str("rollout_id", pl.col("attempt").fill_null("1"), separator=".")


def _by_own_id(spans: pl.DataFrame) -> pl.DataFrame:
    """Take the id that a span carries, with its attempt, its trace's attempt or the only one."""
    within = spans.with_columns(
        pl.coalesce(
            "attempt",
            *(
                pl.when(pl.col("attempt").drop_nulls().n_unique() == 1)
                .then(pl.col("attempt").drop_nulls().first())
                .over("rollout_id", *more)
                for more in (("trace_id",), ())
            ),
        ).alias("resolved_attempt")
    )
    named = pl.concat_str("rollout_id", pl.col("resolved_attempt").fill_null("1"), separator=".")
    return within.with_columns(execution_id=pl.coalesce("execution_id", named)).drop(
        "resolved_attempt"
    )


def _by_trace(spans: pl.DataFrame) -> pl.DataFrame:
    known = pl.col("execution_id").drop_nulls()
    only = pl.when(known.n_unique() == 1).then(known.first()).over("trace_id")
    of_trace = pl.when(pl.col("trace_id").is_not_null()).then(only)
    return spans.with_columns(execution_id=pl.coalesce("execution_id", of_trace))


def _by_ancestor(spans: pl.DataFrame) -> pl.DataFrame:
    missing = spans["execution_id"].null_count()
    while missing:
        known = (
            spans.filter(pl.col("execution_id").is_not_null())
            .select("trace_id", parent_id="span_id", joined_id="execution_id")
            # a stray may have the id of a span of its host's trace
            .unique(["trace_id", "parent_id"], keep="first", maintain_order=True)
        )
        joined = spans.join(known, ["trace_id", "parent_id"], "left", maintain_order="left")
        spans = joined.with_columns(execution_id=pl.coalesce("execution_id", "joined_id")).drop(
            "joined_id"
        )
        missing, before = spans["execution_id"].null_count(), missing
        if missing == before:
            break
    return spans


def _by_link(spans: pl.DataFrame) -> pl.DataFrame:
    """Take the execution of the first linked span that has one."""
    known = (
        spans.filter(pl.col("execution_id").is_not_null())
        .select(link="span_id", joined_id="execution_id")
        .unique("link", keep="first", maintain_order=True)
    )
    numbered = spans.with_row_index("row")
    linking = numbered.filter(pl.col("execution_id").is_null()).select("row", link="links")
    linked = (
        linking.explode("link", empty_as_null=True)
        .join(known, "link", maintain_order="left")
        .group_by("row", maintain_order=True)
        .agg(pl.col("joined_id").first())
    )
    joined = numbered.join(linked, "row", "left", maintain_order="left")
    return joined.with_columns(execution_id=pl.coalesce("execution_id", "joined_id")).drop(
        "row", "joined_id"
    )


def _linked_hosts(spans: pl.DataFrame) -> dict[Key, Key]:
    """Return the client's span of each tool that another process executed in a linked trace.

    Both describe one call if the linked span ran when the other began, and the ids, or the names
    and data, agree.
    """
    linking = spans.filter(
        pl.col("links").list.len() > 0, pl.col("parent_id").is_null(), role=Role.AGENT
    )
    if linking.is_empty():
        return {}
    linked = spans.filter(pl.col("span_id").is_in(linking["links"].explode().implode()))
    hosts = {span.span_id: span for span in iter_spans(linked)}
    found: dict[Key, Key] = {}
    for span in iter_spans(linking):
        for host in (hosts[link] for link in span.links if link in hosts):
            began = host.start <= span.start <= host.end and host.trace_id != span.trace_id
            if began and _is_one_tool(span, host):
                found.setdefault((span.trace_id, span.span_id), (host.trace_id, host.span_id))
    return found


def _is_one_tool(span: Span, host: Span) -> bool:
    try:
        inner, outer = (describe(one)[0] for one in (span, host))
        if inner is None or outer is None or not inner["kind"] == outer["kind"] == "tool":
            return False
        ids = {inner.get("tool_call_id"), outer.get("tool_call_id")} - {None}
        return len(ids) < 2 and is_same_tool(Call(span, inner), Call(host, outer))
    except FAILURES:  # `calls` reports their faults
        return False


def _below_hosts(spans: pl.DataFrame, strays: Strays) -> pl.DataFrame:
    """Set the parent of each stray to its host, and `host_trace` to the trace of the host.

    `host_trace` is the own trace of a span that is not a stray, and null where hosts are ambiguous.
    A stray that has another execution than its host stays where it is.
    """
    hosts = _hosts_of_one_execution(spans, strays.hosts)
    moved = {trace for trace, _ in (*hosts, *strays.ambiguous)}
    parents: defaultdict[str, dict[str, str | None]] = defaultdict(dict)
    columns = _of_traces(spans, moved).select("trace_id", "span_id", "parent_id")
    for trace, span, parent in columns.iter_rows():
        parents[trace][span] = parent
    roots = _roots(parents, {*hosts, *strays.ambiguous})
    rows = [
        (*key, True, _host_trace(root, hosts, roots), hosts[key][1] if key in hosts else None)
        for key, root in roots.items()
    ]
    schema = {
        **dict.fromkeys(("trace_id", "span_id"), pl.String),
        **{"stray": pl.Boolean, "host_trace": pl.String, "host": pl.String},
    }
    found = pl.DataFrame(rows, schema, orient="row")
    joined = spans.join(found, ["trace_id", "span_id"], "left", maintain_order="left")
    own_trace = pl.when(pl.col("stray").is_null()).then("trace_id").otherwise("host_trace")
    # the gateway's session is a guess where the client names one
    guessed = (pl.col("role") == Role.GATEWAY) & pl.col("host_trace").is_not_null()
    return joined.with_columns(
        host_trace=own_trace,
        parent_id=pl.coalesce("host", "parent_id"),
        session_id=pl.when(~guessed.fill_null(False)).then("session_id"),
    ).drop("stray", "host")


def _of_traces(spans: pl.DataFrame, traces: Iterable[str]) -> pl.DataFrame:
    wanted = pl.Series(sorted(traces), dtype=pl.String)
    return spans.filter(pl.col("trace_id").is_in(wanted.implode()))


def _hosts_of_one_execution(spans: pl.DataFrame, hosts: Mapping[Key, Key]) -> dict[Key, Key]:
    """Return the hosts of the strays that have no execution yet, or that of the host."""
    concerned = _of_traces(spans, {trace for pair in hosts.items() for trace, _ in pair})
    columns = concerned.select("trace_id", "span_id", "execution_id")
    executions = {(trace, span): execution for trace, span, execution in columns.iter_rows()}
    return {
        stray: host
        for stray, host in hosts.items()
        if executions[stray] in (None, executions[host])
    }


def _host_trace(stray: Key, hosts: Mapping[Key, Key], roots: Mapping[Key, Key]) -> str | None:
    """Return the trace of the host, or that which the host's trace follows; None if ambiguous."""
    visited = set()
    while stray in hosts and stray not in visited:
        visited.add(stray)
        host = hosts[stray]
        if host not in roots:
            return host[0]
        stray = roots[host]
    return None


def _roots(parents: dict[str, dict[str, str | None]], strays: Iterable[Key]) -> dict[Key, Key]:
    """Return the stray that each span follows: the nearest above it, else that at the root."""
    of_traces: defaultdict[str, set[str]] = defaultdict(set)
    for trace, span in strays:
        of_traces[trace].add(span)
    roots: dict[Key, Key] = {}
    for trace, spans in of_traces.items():
        at_root = min((one for one in spans if parents[trace][one] is None), default=None)
        nearest = nearest_roots(parents[trace], spans)
        for span in parents[trace]:
            root = nearest.get(span, at_root)
            if root is not None:
                roots[trace, span] = (trace, root)
    return roots


def _by_traffic(spans: pl.DataFrame, execution: str) -> pl.DataFrame:
    """Take the session or the trace, of the host where the span follows one; drop `host_trace`."""
    own, before = spans["trace_id"], spans["execution_id"].drop_nulls().unique()
    joined = _by_trace(_by_ancestor(spans.with_columns(trace_id="host_trace")))
    if execution == "session":
        joined = _by_session(joined)
    else:
        joined = joined.with_columns(execution_id=pl.coalesce("execution_id", "trace_id"))
    # of a stray with several possible hosts, not even its own session is known to be right
    known = pl.col("execution_id").is_in(before.implode()).fill_null(False)
    clear = pl.col("host_trace").is_not_null() | known
    return joined.with_columns(
        own, ambiguous=~clear, execution_id=pl.when(clear).then("execution_id")
    ).drop("host_trace")


def _by_session(spans: pl.DataFrame) -> pl.DataFrame:
    """Take the span's session, or its trace where no span of that names one."""
    count = pl.col("session_id").drop_nulls().n_unique().over("trace_id")
    only = pl.col("session_id").drop_nulls().first().over("trace_id")
    columns = ("trace_id", "span_id", "parent_id", "session_id", "attributes")
    placed = sessions.sessions_by_span(spans.filter(count > 1).select(columns).iter_rows())
    schema = {"trace_id": pl.String, "span_id": pl.String, "placed": pl.String}
    found = pl.DataFrame([(*key, session) for key, session in placed.items()], schema, orient="row")
    joined = spans.join(found, ["trace_id", "span_id"], "left", maintain_order="left")
    session = pl.when(count > 1).then("placed").otherwise(only)
    own = pl.when(count == 0).then("trace_id").otherwise(session)
    return joined.with_columns(
        execution_id=pl.coalesce("execution_id", own),
        session_id=pl.when(pl.col("execution_id").is_null()).then(session).otherwise("session_id"),
    ).drop("placed")


def _drops(records: pl.DataFrame, reason: str) -> pl.DataFrame:
    drops = records.select(
        stage=pl.lit("spans"),
        id=pl.col("span_id").fill_null(""),
        reason=pl.lit(reason),
        detail=pl.lit(REASONS[reason]),
    )
    return DROPS.select(drops.lazy()).collect()
