"""The deep checks of `ltrain doctor`: everything of the home and of the store is read once."""

from collections.abc import Iterator
from pathlib import Path

from ltrain_collector.errors import (
    ACCESS_DENIED,
    RESTORE_HINT,
    NoStore,
    QueryFailed,
    StoreInUse,
    StoreUnreachable,
)
from ltrain_collector.store import Store
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.instrumentors import Finding, State
from ltrain_instrument.quantity import quantity
from ltrain_instrument.settings import HOME
from ltrain_train.policy import Policies
from ltrain_train.runs import Journal
from ltrain_train.updates import check_dataset, check_removed, check_version, fault
from ltrain_transforms.datasets import MANIFEST
from ltrain_transforms.run_events import JOURNAL

TABLES = (
    "SELECT name FROM system.tables WHERE database = 'otel' AND endsWith(engine, 'MergeTree') "
    "ORDER BY name"
)
CHECK = "CHECK TABLE otel.{} SETTINGS check_query_single_value_result = 0"
"""A row for each part: its folder, whether its checksums are right, and else the reason."""
DETACHED = (
    "SELECT table, count() AS parts, any(path) AS example FROM system.detached_parts "
    "WHERE database = 'otel' AND startsWith(reason, 'broken') GROUP BY table ORDER BY table"
)
"""Parts that ClickHouse found damaged when it opened the store, and does not read."""
OWNER = "Run the command as the store's owner, or with a key of `ltrain key make admin`."


def run_deep_checks() -> Iterator[Finding]:
    """Yield what is found of the store, and of each journal, policy version and dataset."""
    home = HOME.read()
    yield from check_store()
    for journal in sorted((home / "runs").glob(f"*/{JOURNAL}")):
        yield check_journal(journal.parent)
    policies = Policies(home)
    for name in policies.names():
        for version in policies.versions(name):
            yield from check_version(policies, name, version)
        yield from check_removed(policies, name)
    for manifest in sorted((home / "datasets").glob(f"*/*/{MANIFEST}")):
        if not manifest.parent.name.startswith("."):
            yield check_dataset(manifest.parent)


def check_store() -> Iterator[Finding]:
    """Yield the damaged parts of the store's tables, or that there are none."""
    try:
        with Store.open(create=False) as store:
            owner = store.open_as_owner()
            yield from check_tables(owner or store)
            if owner is not None:
                owner.close()
    except QueryFailed as error:
        denied = error.code == ACCESS_DENIED
        state, fix = (State.NOTE, OWNER) if denied else (State.FAULT, RESTORE_HINT)
        yield Finding("store parts", state, str(error), fix)
    except (NoStore, StoreInUse, StoreUnreachable) as error:
        yield Finding("store parts", State.NOTE, f"they were not checked: {error}")
    except LtrainError as error:
        yield fault("store parts", error)


def check_tables(store: Store) -> Iterator[Finding]:
    """Yield the damaged parts of the tables of an open store, or that there are none."""
    names, parts, damaged = store.query(TABLES)["name"].to_list(), 0, 0
    for table, count, example in store.query(DETACHED).iter_rows():
        damaged += count
        problem = f"{store.name}: {quantity(count, 'damaged part')} of otel.{table}: {example}"
        yield Finding("store parts", State.FAULT, problem, RESTORE_HINT)
    for name in names:
        for part, is_sound, reason in store.query(CHECK.format(name)).iter_rows():
            parts += 1
            if not is_sound:
                damaged += 1
                problem = f"{store.name}: part {part} of otel.{name} is damaged: {reason}"
                yield Finding("store parts", State.FAULT, problem, RESTORE_HINT)
    if not damaged:
        detail = f"{store.name}: the checksums of {quantity(parts, 'part')} are right"
        yield Finding("store parts", State.OK, detail)


def check_journal(folder: Path) -> Finding:
    """Return what is found of a run's journal."""
    try:
        journal = Journal.load(folder)
    except LtrainError as error:
        return fault("journal", error)
    waves = len(journal.waves) if journal is not None else 0
    return Finding("journal", State.OK, f"{folder}: it is readable, with {quantity(waves, 'wave')}")
