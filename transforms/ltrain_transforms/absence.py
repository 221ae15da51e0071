"""Why a source selects nothing: which of its conditions leaves no execution, and what there is."""

from collections.abc import Iterator
from contextlib import contextmanager

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.errors import BadRecipe, NothingToBuild
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, conditions, unit


@contextmanager
def selecting(store: Store, source: Source, selection: Selection) -> Iterator[None]:
    """Turn ClickHouse's refusal of a selection into what its user can mend.

    Raises:
        NothingToBuild: of a store without our tables.
        BadRecipe: of a condition of the recipe's own that is no SQL over the spans.
    """
    try:
        yield
    except QueryFailed as error:
        if error.table_missing:
            raise NothingToBuild(
                _sentence(store, source, selection, "Nothing is in it.")
            ) from error
        if source.where is not None:
            columns = ", ".join(store.query("SELECT * FROM otel.spans LIMIT 0").columns)
            raise BadRecipe(
                f"source.where = '{source.where}' cannot be read as a condition on otel.spans: "
                f"{error} Columns: {columns}."
            ) from error
        raise


def nothing(store: Store, source: Source, selection: Selection) -> NothingToBuild:
    """Say how many executions each condition leaves, one after the other, and which runs it has."""
    named, params = conditions(source, selection)
    kept, counts = ["true"], []
    for number, condition in enumerate(named.values()):
        kept.append(condition)
        counts.append(f"uniqExactIf({unit(source)}, {' AND '.join(kept)}) AS n{number}")
    found = ["count() AS spans", *counts]
    [left] = store.query(f"SELECT {', '.join(found)} FROM otel.spans", params).to_dicts()
    steps = (f"{name} {left[f'n{number}']}" for number, name in enumerate(named))
    runs = store.query("SELECT DISTINCT toString(RunId) AS run FROM otel.spans ORDER BY run")["run"]
    there = ", ".join(name for name in runs if name) or "none"
    why = f"Executions that are left by each in turn: {', '.join(steps)}. Runs in it: {there}."
    return NothingToBuild(_sentence(store, source, selection, why))


def _sentence(store: Store, source: Source, selection: Selection, why: str) -> str:
    wanted = {
        "run": selection.run or source.run,
        "mode": selection.mode,
        "wave": selection.wave,
        "where": source.where,
        "since": source.since,
        "until": source.until,
    }
    asked = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
    return (
        f"The store {store.name} holds no execution of what [source] selects ({asked}). {why} "
        "--run, --mode, --wave and --store look elsewhere; `ltrain rollout` makes some."
    )
