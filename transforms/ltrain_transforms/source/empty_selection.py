"""Explain a selection that fails or is empty: its conditions, and the runs that the store has."""

from collections.abc import Iterator
from contextlib import contextmanager

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.errors import BadRecipe, NothingToBuild
from ltrain_transforms.recipe import Source
from ltrain_transforms.source.reader import Selection, batch_column, selection_conditions


@contextmanager
def explain_query_errors(store: Store, source: Source, selection: Selection) -> Iterator[None]:
    """Turn ClickHouse's error about a selection into an error that names the remedy.

    Raises:
        NothingToBuild: the store lacks ltrain's tables.
        BadRecipe: `source.where` is not SQL over the columns of `otel.spans`.
    """
    try:
        yield
    except QueryFailed as error:
        if error.table_missing:
            raise _no_traces(store, source, selection) from error
        if source.where is not None:
            columns = ", ".join(store.query("SELECT * FROM otel.spans LIMIT 0").columns)
            raise BadRecipe(
                f"source.where = '{source.where}' cannot be read as a condition on otel.spans: "
                f"{error} Columns: {columns}."
            ) from error
        raise


def empty_selection(store: Store, source: Source, selection: Selection) -> NothingToBuild:
    """Return an error with the executions that each condition leaves in turn, and all runs."""
    named, params = selection_conditions(source, selection)
    applied, counts = ["true"], []
    for number, condition in enumerate(named.values()):
        applied.append(condition)
        counts.append(f"uniqExactIf({batch_column(source)}, {' AND '.join(applied)}) AS n{number}")
    columns = ["count() AS spans", *counts]
    [row] = store.query(f"SELECT {', '.join(columns)} FROM otel.spans", params).to_dicts()
    if not row["spans"]:
        return _no_traces(store, source, selection)
    steps = (f"{name} {row[f'n{number}']}" for number, name in enumerate(named))
    runs = store.query("SELECT DISTINCT toString(RunId) AS run FROM otel.spans ORDER BY run")["run"]
    names = ", ".join(name for name in runs if name) or "none"
    reason = (
        f"Executions left after each condition: {', '.join(steps)}. Runs in the store: {names}."
    )
    return NothingToBuild(
        _message(store, source, selection, f"{reason}{_traffic_advice(store, source)}")
    )


def _no_traces(store: Store, source: Source, selection: Selection) -> NothingToBuild:
    reason = (
        "The store has no traces yet. Start `ltrain up`, and run the agent with "
        "`opentelemetry-instrument`; `ltrain doctor` checks what is in the way."
    )
    return NothingToBuild(_message(store, source, selection, reason))


def _traffic_advice(store: Store, source: Source) -> str:
    """Return how to read the traces of a store in which no span names a rollout."""
    if source.execution != "rollout":
        return ""
    if store.query("SELECT count() AS spans FROM otel.spans WHERE RolloutId != ''")["spans"][0]:
        return ""
    return (
        ' No span names a rollout. Write `execution = "session"` under [source] in the recipe: '
        "then each conversation is an execution, or each trace where none is named."
    )


def _message(store: Store, source: Source, selection: Selection, reason: str) -> str:
    options = {
        "run": selection.run or source.run,
        "mode": selection.mode,
        "wave": selection.wave,
        "where": source.where,
        "since": source.since,
        "until": source.until,
    }
    conditions = ", ".join(
        f"{name} {value}" for name, value in options.items() if value is not None
    )
    return (
        f"The store {store.name} holds no execution that [source] selects ({conditions}). {reason} "
        "Choose others with --run, --mode, --wave or --store, or make some with `ltrain rollout`."
    )
