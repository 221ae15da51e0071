"""Trees of rollouts, traces and sessions: how much of one a page has, and those that were read.

A tree is kept until the store has other spans of its group, or the recipe or the dataset is another
one, so the next call of it, or the next page, does not derive it again.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256

from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import Identifier
from ltrain_transforms.show import (
    Extent,
    RolloutTree,
    SpansState,
    StoredExecution,
    StoredGroup,
    TrainedDataset,
    find_execution,
    find_reference,
    recipe_of_group,
)
from ltrain_ui.sources import Sources

MAX_CALLS = 60_000
"""Calls of the trees that are kept; one of 10,000 calls with messages takes about 150 MB."""
LIFETIME = 300.0
"""Seconds that a tree is kept: log records that come after the spans are in no state of a store."""
SMALL = 2_000
"""Maximum spans of a group whose credit a page awaits."""
FEW = 800
"""Maximum spans of a rollout of which a page waits for all calls."""


@dataclass(frozen=True, slots=True)
class TreeAddress:
    """A tree as addresses name it."""

    of: str
    """Kind and id, such as `rollout:3f2a`."""
    extent: Extent | None = None
    """How much of it is read; None: what can be read at once."""
    by_recipe: bool = False
    """Whether the recipe is applied although a dataset has the rollout."""
    is_whole: bool = False
    """Whether all calls are needed, where `extent` is None."""


@dataclass(frozen=True, slots=True)
class OpenedTree:
    """A tree for a page."""

    tree: RolloutTree
    key: str
    """The name of the tree among those that are kept."""
    next: Extent | None
    """The part that the page reads after this tree; None: it is complete."""
    dataset: TrainedDataset | None
    """The dataset that was trained with it."""
    has_newer: bool
    """Whether the store has spans of it that came after the dataset."""


@dataclass(frozen=True, slots=True)
class _Request:
    """An execution, and what decides on its rewards."""

    execution: StoredExecution
    own: SpansState
    """The execution alone, from the store."""
    recipe: Recipe
    label: str
    """A label of the recipe, for the reader."""
    dataset: TrainedDataset | None
    """The dataset that is shown in place of what the recipe gives."""
    group: Callable[[], StoredGroup]
    """Returns its group, which is read once."""

    @property
    def final(self) -> Extent:
        """The content of a complete page."""
        return Extent.CREDIT if self.dataset is None else Extent.TRAINED

    def later(self, extent: Extent) -> Extent | None:
        """Return what a page reads after a part of the execution; None after the last part."""
        if extent.is_judged:
            return None
        has_group = self.execution.has_group and self.dataset is None
        return Extent.CALLS if extent == Extent.FIRST and has_group else self.final


class Trees:
    """Reads trees, one thread for each, and keeps the latest."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Future[RolloutTree]]] = OrderedDict()

    def open(self, address: TreeAddress) -> OpenedTree:
        """Return a tree of the store.

        Raises:
            LtrainError: when there is no store, or nothing has this id.
        """
        recipe, label = recipe_of_group(self._sources.recipe)
        execution = self._find(address.of, recipe)
        dataset = execution.trained(self._sources.home)
        own = self._sources.read(execution.state)
        shown = None if address.by_recipe else dataset
        group = cache(lambda: self._sources.read(lambda store: execution.group(store, recipe)))
        request = _Request(execution, own, recipe, label, shown, group)
        extent = address.extent or self._extent(request, address.is_whole)
        key = self._key(request, extent)
        tree = self._read(key, lambda: self._derive(request, extent))
        later = request.later(extent)
        has_newer = dataset is not None and own.latest > dataset.watermark
        return OpenedTree(tree, key, later, dataset, has_newer)

    def get(self, key: str, address: TreeAddress) -> RolloutTree:
        """Return the tree of this key, or read it again when it is not kept any more."""
        kept = self._kept_tree(key)
        return kept.result() if kept is not None else self.open(address).tree

    def _find(self, of: str, recipe: Recipe) -> StoredExecution:
        sources, name = self._sources, Identifier.parse(of)
        found = sources.read(lambda store: find_execution(store, name, recipe.source.trust))
        if found is None:  # raises, with the nearest names
            sources.read(lambda store: find_reference(store, of, sources.home))
        assert found is not None
        return found

    def _extent(self, request: _Request, is_whole: bool) -> Extent:
        """Return how much of an execution can be read at once.

        Args:
            is_whole: whether all calls are needed.
        """
        own = request.own.spans
        if own > FEW and not is_whole:
            return Extent.FIRST
        final = request.final
        needed = own if final == Extent.TRAINED else request.group().state.spans
        kept = self._kept_tree(self._key(request, final))
        if needed <= SMALL or (kept is not None and kept.done()):
            return final
        return Extent.CALLS if request.later(Extent.FIRST) == Extent.CALLS else final

    def _key(self, request: _Request, extent: Extent) -> str:
        is_of_group = extent == Extent.CREDIT
        state = request.group().state if is_of_group else request.own
        execution, recipe = request.execution, request.recipe
        dataset = request.dataset if extent == Extent.TRAINED else None
        parts = (execution.kind, execution.id, extent, recipe.digest, request.label, state, dataset)
        return sha256(repr(parts).encode()).hexdigest()[:16]

    def _derive(self, request: _Request, extent: Extent) -> RolloutTree:
        execution, dataset = request.execution, request.dataset
        tree, read = None, self._sources.read
        if dataset is not None and extent == Extent.TRAINED:
            tree = read(lambda store: execution.read_trained(store, dataset))
        if tree is None:  # by the recipe, also where the dataset is damaged
            part = Extent.CREDIT if extent == Extent.TRAINED else extent
            group = request.group() if part == Extent.CREDIT else None
            recipe, label = request.recipe, request.label
            tree = read(lambda store: execution.read(store, recipe, label, part, group))
        if tree is None:
            name = f"{execution.kind}:{execution.id}"
            raise NothingToShow(f"The spans of {name} are of no execution that can be shown.")
        return replace(tree, tables={})  # pages need only the tree

    def _kept_tree(self, key: str) -> Future[RolloutTree] | None:
        with self._lock:
            made, kept = self._kept.get(key, (0.0, None))
            return kept if time.monotonic() - made < LIFETIME else None

    def _read(self, key: str, derive: Callable[[], RolloutTree]) -> RolloutTree:
        """Return the tree of a key; of several threads one derives it, and the others wait."""
        own = Future[RolloutTree]()
        with self._lock:
            made, kept = self._kept.get(key, (0.0, own))
            if kept is own or time.monotonic() - made >= LIFETIME:
                kept = own
                self._kept[key] = (time.monotonic(), own)
            self._kept.move_to_end(key)
        if kept is not own:
            return kept.result()
        try:
            own.set_result(derive())
        except BaseException as error:
            own.set_exception(error)
            with self._lock:
                self._kept.pop(key, None)
            raise
        self._forget()
        return own.result()

    def _forget(self) -> None:
        """Remove the oldest trees beyond `MAX_CALLS`, and those that are too old."""
        with self._lock:
            calls = 0
            for key, (made, tree) in reversed(list(self._kept.items())):
                if not tree.done():
                    continue
                calls += tree.result().size
                is_latest = key == next(reversed(self._kept))
                if time.monotonic() - made >= LIFETIME or (calls > MAX_CALLS and not is_latest):
                    del self._kept[key]
