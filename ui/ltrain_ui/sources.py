"""The sources of the pages: a store, which may be away for a time, a home and a recipe."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ltrain_collector.dsn import local_folder, parse_dsn
from ltrain_collector.errors import NO_CODE, QueryFailed, StoreUnreachable
from ltrain_collector.store import Store
from ltrain_instrument.settings import STORE
from ltrain_transforms.datasets import list_datasets
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import Kind, Reference, Report, policy_names
from ltrain_transforms.show import (
    describe_near,
    find_reference,
    look_up_in_home,
    near_references,
    recipe_or_default,
)
from ltrain_transforms.traces import sender_roles
from ltrain_ui.sessions import current_key

T = TypeVar("T")


class Sources(AbstractContextManager["Sources"]):
    """Opens the store when a page needs it, and again after its server was away."""

    def __init__(self, dsn: str | None, home: Path, recipe: Path | None) -> None:
        """Take the addresses; nothing is opened yet.

        Args:
            dsn: the store; None for LTRAIN_STORE or the store of this machine.
            recipe: the file with the rewards; None for `ltrain.toml`, if there is one.
        """
        self._dsn = dsn
        self.home = home
        self.recipe = recipe
        self._stores: dict[str, Store] = {}
        """By the key that they were opened with; a folder has none."""
        self._lock = threading.Lock()
        self._at_stop: list[Callable[[], None]] = []

    def at_stop(self, action: Callable[[], None]) -> None:
        """Register what ends with the server, such as streams that have no end of their own."""
        self._at_stop.append(action)

    def stop(self) -> None:
        """End what was registered; the store stays open for requests that are not finished."""
        for action in self._at_stop:
            action()

    def read(self, query: Callable[[Store], T]) -> T:
        """Return what `query` reads from the store.

        Raises:
            LtrainError: when there is no store, or the query fails.
        """
        store = self._open()
        try:
            return query(store)
        except StoreUnreachable:
            self._close(store)
            raise
        except QueryFailed as error:
            if store.server is None or error.code != NO_CODE:
                raise
            self._close(store)
            raise StoreUnreachable(
                f"The store {store.name} does not answer any more. Start it again; the pages work "
                "when it is back."
            ) from error

    def store_folder(self) -> Path | None:
        """Return the folder of the store, beside which its keys are; None on another machine."""
        dsn = self._dsn or STORE.read()
        return local_folder(parse_dsn(dsn) if dsn else None, self.home)

    def load_recipe(self) -> tuple[Recipe, str]:
        """Return the recipe as its file is now, and a label of it for the reader.

        Raises:
            BadRecipe: when the file is not a valid recipe.
        """
        return recipe_or_default(self.recipe)

    def trusted_senders(self) -> Sequence[str]:
        """Return the senders whose spans count as those of a runner or a learner."""
        recipe, _ = self.load_recipe()
        return sender_roles.trusted_senders(recipe.source.trust)

    def find(self, name: str) -> Reference:
        """Return the run, rollout, trace or session that an id names in the store.

        Raises:
            LtrainError: when there is no store, or nothing has this id.
        """
        recipe, _ = self.load_recipe()
        trust = recipe.source.trust
        return self.read(lambda store: find_reference(store, name, self.home, trust))

    def look_up_in_home(self, kind: str, name: str, against: str | None = None) -> Report:
        """Return a policy version, or a dataset and how it differs from `against`.

        Raises:
            NothingToShow: when it does not exist.
        """
        found = look_up_in_home(f"{kind}:{name}", home=self.home, against=against, folders=False)
        if found is None:
            known = {
                Kind.POLICY: policy_names(self.home),
                Kind.DATASET: [dataset for _, dataset in list_datasets(self.home)],
            }
            near = near_references(name, (Kind(kind),), known, None)
            sentence = f"There is no {kind} '{name}' in {self.home}.{describe_near(near)}"
            raise NothingToShow(sentence, near)
        return found

    def _open(self) -> Store:
        """Return the store, opened with the key of the person who asks."""
        key = current_key()
        with self._lock:
            store = self._stores.get(key) or self._stores.get("")
            if store is None:
                store = Store.open(self._dsn, create=False, key=key)
                self._stores[key if store.server else ""] = store
            return store

    def _close(self, store: Store) -> None:
        with self._lock:
            self._stores = {key: one for key, one in self._stores.items() if one is not store}
        store.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for store in [*self._stores.values()]:
            self._close(store)

    def __enter__(self) -> Self:
        return self
