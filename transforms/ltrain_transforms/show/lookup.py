"""An id -> what it stands for, looked up: a `Tree` of a rollout, or a `Report`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from ltrain_collector.errors import NoStore, QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms import roles
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.errors import NoDataset, NothingToShow
from ltrain_transforms.recipe import DEFAULT, Recipe
from ltrain_transforms.show import dataset, difference, policy, run, subject
from ltrain_transforms.show.judged import judged
from ltrain_transforms.show.report import Report
from ltrain_transforms.show.rollout import recipe_or_default, rollout
from ltrain_transforms.show.subject import Asked, Kind
from ltrain_transforms.show.tree import Tree, tree
from ltrain_transforms.show.waves import waves


def silent(_: str) -> None:
    """Say nothing."""


def look_up(
    identifier: str,
    *,
    home: Path,
    dsn: str | None = None,
    recipe: Path | None = None,
    against: str | None = None,
    say: Callable[[str], None] = silent,
) -> Tree | Report:
    """Find what `identifier` stands for and tell of it; a store is opened only where it is needed.

    Args:
        against: another dataset, from which the first differs.
        say: is told what is being read where that takes long.

    Raises:
        NothingToShow: when nothing is called so, or several things are.
        BadRecipe: when the recipe by which a rollout or run is judged is none.
    """
    asked = Asked.read(identifier)
    found = subject.dataset(asked, home)
    if against is not None:
        return _against(asked, found, against, home)
    if found is not None:
        with _readable(found):
            return dataset.report(found)
    version = subject.policy_version(asked, home)
    if version is not None:
        return policy.report(home, *version)
    return _stored(asked, home, dsn, recipe, say)


def _against(asked: Asked, found: Dataset | None, against: str, home: Path) -> Report:
    pair = found, subject.dataset(Asked(against, (Kind.DATASET,)), home)
    for one, name in zip(pair, (asked.text, against), strict=True):
        if one is None:
            raise NothingToShow(
                f"--against compares two datasets, and '{name}' is none: no folder with a "
                f"manifest.json and no id in {home}/datasets. `ltrain build` makes one."
            )
    given, other = pair
    assert given is not None and other is not None
    with _readable(given, other):
        return difference.report(given, other)


@contextmanager
def _readable(*datasets: Dataset) -> Iterator[None]:
    """Say of datasets that are damaged, or lack columns of this version, that they are."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError, KeyError) as error:
        where = " or ".join(str(one.path) for one in datasets)
        raise NoDataset(
            f"{where} is damaged or was made by another version of ltrain: "
            f"{str(error).splitlines()[0]}. `ltrain build` makes it again."
        ) from error


def _stored(
    asked: Asked, home: Path, dsn: str | None, recipe: Path | None, say: Callable[[str], None]
) -> Tree | Report:
    if not {Kind.RUN, Kind.ROLLOUT} & set(asked.kinds):
        raise subject.nothing(asked, home, None)
    try:
        store = Store.open(dsn, create=False)
    except NoStore as error:
        raise NothingToShow(f"{subject.nothing(asked, home, None)} {error}") from error
    with store:
        try:
            return _of_store(store, asked, home, recipe, say)
        except QueryFailed as error:
            if error.table_missing:
                raise subject.nothing(asked, home, None) from error
            raise


def _of_store(
    store: Store, asked: Asked, home: Path, recipe: Path | None, say: Callable[[str], None]
) -> Tree | Report:
    if subject.is_run(asked, store):
        return _run(store, asked.text, recipe, say)
    judge, judged_by = recipe_or_default(recipe)
    found = subject.rollout(asked, store, judge.source.trust)
    if found is None:
        raise subject.nothing(asked, home, store)
    return tree(rollout(store, judge, judged_by, found))


def _run(store: Store, name: str, recipe: Path | None, say: Callable[[str], None]) -> Report:
    """Tell of a run; rules and drops only where there is a recipe that says what they are."""
    if recipe is None and not DEFAULT.exists():
        found = waves(store, name)
        return run.report(name, found, None, f"no recipe: no {DEFAULT} here; --recipe names one")
    loaded = Recipe.load(recipe or DEFAULT)
    found = waves(store, name, roles.trusted_senders(loaded.source.trust))
    of_recipe = judged(store, loaded, name, found.waves, say)
    return run.report(name, found, of_recipe, f"{recipe or DEFAULT}, digest {loaded.digest}")
