"""Look up an id: return the `RolloutTree` of a rollout, trace or session, or a `Report`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from ltrain_collector.errors import NoStore, QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.errors import BadPolicyFile, NoDataset, NothingToShow
from ltrain_transforms.recipe import DEFAULT, Recipe
from ltrain_transforms.reports import (
    Identifier,
    Kind,
    RecipeResults,
    Reference,
    Report,
    RunWaves,
    apply_recipe,
    dataset_report,
    difference_report,
    look_at,
    policy_report,
    query_waves,
    read_results,
    run_report,
    run_state,
)
from ltrain_transforms.show import subject
from ltrain_transforms.show.rollout import recipe_file, recipe_of_group
from ltrain_transforms.show.stored_execution import find_execution
from ltrain_transforms.show.trained_rows import trained_versions
from ltrain_transforms.show.tree import RolloutTree
from ltrain_transforms.traces import sender_roles

IN_STORE = {Kind.RUN, Kind.ROLLOUT, Kind.TRACE, Kind.SESSION, Kind.SPAN}
"""The kinds that are searched in the store."""


def ignore_status(_: str) -> None:
    """Report nothing."""


def look_up(
    identifier: str,
    *,
    home: Path,
    dsn: str | None = None,
    recipe: Path | None = None,
    against: str | None = None,
    report_status: Callable[[str], None] = ignore_status,
) -> RolloutTree | Report:
    """Look up what `identifier` names; the store is opened for what is in it only.

    Args:
        against: another dataset, for a comparison.
        report_status: called with what is being read, where that takes long.

    Raises:
        NothingToShow: when the id names nothing, or several things.
        BadRecipe: when the recipe for a rollout or run is not valid.
    """
    name = Identifier.parse(identifier)
    in_home = look_up_in_home(identifier, home=home, against=against)
    if in_home is not None:
        return in_home
    if not IN_STORE & set(name.kinds):
        raise subject.not_found(name, home, None)
    try:
        store = Store.open(dsn, create=False)
    except NoStore as error:
        raise NothingToShow(f"{subject.not_found(name, home, None)} {error}") from error
    with store:
        return look_up_in_store(store, identifier, home, recipe, report_status)


def look_up_in_home(
    identifier: str, *, home: Path, against: str | None = None, folders: bool = True
) -> Report | None:
    """Return the report on a dataset or a policy; None if `identifier` names neither.

    Args:
        against: another dataset, for a comparison.
        folders: whether the folder of a dataset names it too.

    Raises:
        NothingToShow: when one of two datasets does not exist.
    """
    name = Identifier.parse(identifier)
    dataset = subject.find_dataset(name, home, folders)
    if against is not None:
        return _compare(name, dataset, against, home, folders)
    if dataset is not None:
        with _explain_damage(dataset):
            return dataset_report(dataset, _trained(home, dataset))
    version = subject.find_policy_version(name, home)
    return None if version is None else policy_report(home, *version)


def look_up_in_store(
    store: Store,
    identifier: str,
    home: Path,
    recipe: Path | None = None,
    report_status: Callable[[str], None] = ignore_status,
) -> RolloutTree | Report:
    """Look up a run, rollout, trace, session or span in an open store."""
    name = Identifier.parse(identifier)
    try:
        return _run_or_execution(store, name, home, recipe, report_status)
    except QueryFailed as error:
        if error.table_missing:
            raise subject.not_found(name, home, None) from error
        raise


def find_reference(
    store: Store, identifier: str, home: Path, trust: Sequence[str] = ()
) -> Reference:
    """Return what `look_up_in_store` shows for an id, without reading it.

    Args:
        trust: the recipe's `source.trust`.

    Raises:
        NothingToShow: when the id names nothing, or several things.
    """
    name = Identifier.parse(identifier)
    if subject.is_run(name, store):
        return Reference(Kind.RUN, name.text)
    found = find_execution(store, name, trust)
    if found is None:
        raise subject.not_found(name, home, store)
    return Reference(Kind(found.kind), found.id)


def _trained(home: Path, dataset: Dataset) -> tuple[Reference, ...] | str:
    """Return the versions that were trained on a dataset, or the error of a damaged one."""
    try:
        return trained_versions(home, dataset.id)
    except BadPolicyFile as error:
        return f"not known: {error}"


def _compare(
    name: Identifier, first: Dataset | None, against: str, home: Path, folders: bool
) -> Report:
    second = subject.find_dataset(Identifier(against, (Kind.DATASET,)), home, folders)
    if first is None:
        raise _not_a_dataset(name.text, home)
    if second is None:
        raise _not_a_dataset(against, home)
    with _explain_damage(first, second):
        return difference_report(first, second)


def _not_a_dataset(name: str, home: Path) -> NothingToShow:
    return NothingToShow(
        f"--against compares two datasets, and '{name}' is not one: there is no folder {name} "
        f"with a manifest.json, and no dataset of that id in {home}/datasets. Build one with "
        "`ltrain build`."
    )


@contextmanager
def _explain_damage(*datasets: Dataset) -> Iterator[None]:
    """Raise `NoDataset` for datasets that are damaged or lack columns of this version."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError, KeyError) as error:
        where = " or ".join(str(dataset.path) for dataset in datasets)
        raise NoDataset(
            f"{where} is damaged or was built by another version of ltrain: "
            f"{str(error).splitlines()[0]}. Build it again with `ltrain build`."
        ) from error


def _run_or_execution(
    store: Store,
    name: Identifier,
    home: Path,
    recipe: Path | None,
    report_status: Callable[[str], None],
) -> RolloutTree | Report:
    if subject.is_run(name, store):
        return _run(store, name.text, home, recipe, report_status)
    loaded, recipe_label = recipe_of_group(recipe)
    found = find_execution(store, name, loaded.source.trust)
    shown = None if found is None else found.read(store, loaded, recipe_label)
    if shown is None:
        raise subject.not_found(name, home, store)
    return shown


def _run(
    store: Store,
    name: str,
    home: Path,
    recipe: Path | None,
    report_status: Callable[[str], None],
) -> Report:
    """Return the report on a run, with rules and drops if there is a recipe."""
    file = recipe_file(recipe)
    if file is None:
        waves = query_waves(store, name)
        reason = f"no recipe: no {DEFAULT} here; --recipe names one"
        return _report(store, home, name, waves, None, reason)
    loaded = Recipe.load(file)
    waves = query_waves(store, name, sender_roles.trusted_senders(loaded.source.trust))
    results = apply_recipe(store, loaded, name, waves.waves, report_status)
    label = f"{file}, digest {loaded.digest}"
    return _report(store, home, name, waves, results, label)


def trained_run_report(store: Store, home: Path, name: str, trust: Sequence[str]) -> Report:
    """Return the report on a run, with rules and drops as they are in its datasets.

    Raises:
        NothingToShow: when the store has no such run.
    """
    identifier = Identifier(name, (Kind.RUN,))
    if not subject.is_run(identifier, store):
        raise subject.not_found(identifier, home, store)
    waves = query_waves(store, name, trust)
    results = read_results(home, name, waves.waves)
    found = "the datasets of its waves" if results else f"no dataset of its waves in {home}"
    return _report(store, home, name, waves, results, found)


def _report(
    store: Store,
    home: Path,
    run: str,
    waves: RunWaves,
    results: RecipeResults | None,
    label: str,
) -> Report:
    worth_a_look = look_at(store, run, waves.waves, waves.alarms)
    return run_report(run, waves, results, label, run_state(home, run), worth_a_look)
