"""A rollout, trace or session of the store: found by its id, then read as far as a page needs it.

Reading the group of a rollout of 10,000 calls takes half a minute, so its page begins with its
first spans, goes on with its own calls, and ends with what needs the group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import Identifier
from ltrain_transforms.show import subject
from ltrain_transforms.show.rollout import (
    Extent,
    RolloutPlace,
    RolloutTables,
    candidates,
    parsed_tables,
    read_rollout,
    select_group,
)
from ltrain_transforms.show.traffic import (
    TrafficKind,
    only_rollout,
    own_condition,
    read_traffic,
    traffic_source,
)
from ltrain_transforms.show.trained_tables import TrainedDataset, find_trained, read_trained
from ltrain_transforms.show.tree import RolloutTree, build_tree
from ltrain_transforms.source import Selection, read_first_spans, read_spans, read_spans_state

FIRST_SPANS = 160
"""Spans of which a page shows the first calls."""


@dataclass(frozen=True, slots=True)
class SpansState:
    """The state of an execution or a group in the store; another state means other trees."""

    spans: int
    latest: str
    """When the last span was ingested; of one execution without reports of processes, since a
    worker sends its last one when it exits."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The rollouts with which credit compares an execution."""

    selection: Selection
    state: SpansState
    """With the spans that name no rollout."""


@dataclass(frozen=True, slots=True)
class StoredExecution:
    """A rollout, trace or session in the store."""

    kind: str
    id: str
    place: RolloutPlace | None = None
    """Of a rollout: its place in a run."""

    @property
    def has_group(self) -> bool:
        """Whether credit compares it with other rollouts."""
        return self.place is not None and bool(self.place.run and self.place.task)

    def state(self, store: Store) -> SpansState:
        """Return what the store has of the spans that name it."""
        own, params = self._own()
        sql = f"""
            SELECT toInt64(count()) AS spans,
                toString(maxIf(IngestedAt, SpanName != '{attributes.SPAN_PROCESS}')) AS latest
            FROM otel.spans WHERE {own}
        """
        return SpansState(*store.query(sql, params).row(0))

    def group(self, store: Store, recipe: Recipe) -> "StoredGroup":
        """Return its group; of a trace or session itself."""
        if self.place is not None:
            source = recipe.source.without_selection()
            selection = select_group(store, source, self.place)
        else:
            source, selection = traffic_source(recipe, self._traffic, self.id), Selection()
        return StoredGroup(selection, SpansState(*read_spans_state(store, source, selection)))

    def trained(self, home: Path) -> TrainedDataset | None:
        """Return the dataset with the rollout, if there is one."""
        return None if self.place is None else find_trained(home, self.place)

    def read(
        self,
        store: Store,
        recipe: Recipe,
        recipe_label: str,
        extent: Extent = Extent.CREDIT,
        group: "StoredGroup | None" = None,
    ) -> RolloutTree | None:
        """Return the tree; None if no execution has this id.

        Args:
            extent: any but `TRAINED`.
            group: its group, if it is known.
        """
        tables: RolloutTables | None
        if extent == Extent.FIRST:
            tables = self._read_first(store, recipe)
        elif self.place is None:
            tables = read_traffic(store, recipe, recipe_label, self._traffic, self.id)
        elif extent == Extent.CALLS:
            tables = self._read_calls(store, recipe, self.place)
        else:
            selection = None if group is None else group.selection
            tables = read_rollout(store, recipe, recipe_label, self.place, selection)
        return None if tables is None else build_tree(tables)

    def read_trained(self, store: Store, dataset: TrainedDataset) -> RolloutTree | None:
        """Return the tree as a dataset has it; None if the dataset is damaged."""
        tables = None if self.place is None else read_trained(store, dataset, self.place)
        return None if tables is None else build_tree(tables)

    @property
    def _traffic(self) -> TrafficKind:
        return "session" if self.kind == "session" else "trace"

    def _read_first(self, store: Store, recipe: Recipe) -> RolloutTables:
        is_rollout = self.kind == "rollout"
        source = (
            recipe.source.without_selection()
            if is_rollout
            else traffic_source(recipe, self._traffic, self.id)
        )
        own, params = self._own()
        spans = read_first_spans(store, source, own, params, FIRST_SPANS)
        tables = parsed_tables(spans, recipe, self.id if is_rollout else None)
        return RolloutTables(self.id, tables, _no_group(), "", self.kind, extent=Extent.FIRST)

    def _own(self) -> tuple[str, dict[str, object]]:
        """Return the SQL condition on the spans that name it, and its parameters."""
        params: dict[str, object] = {"id": self.id}
        if self.place is None:
            return own_condition(self._traffic), params
        own = "RolloutId = {id:String}"
        if run := self.place.run:  # feedback names no run
            own, params["run"] = f"RunId IN ('', {{run:String}}) AND {own}", run
        return own, params

    def _read_calls(self, store: Store, recipe: Recipe, place: RolloutPlace) -> RolloutTables:
        selection = Selection(rollouts=(self.id,), run=place.run or None)
        source = recipe.source.without_selection()
        spans, _ = read_spans(store, source, selection, metrics=recipe.metrics)
        tables = parsed_tables(spans, recipe, self.id)
        return RolloutTables(self.id, tables, _no_group(), "", self.kind, extent=Extent.CALLS)


def _no_group() -> pl.DataFrame:
    return pl.DataFrame(schema={"execution_id": pl.String(), "reward": pl.Float64()})


def find_execution(store: Store, name: Identifier, trust: Sequence[str]) -> StoredExecution | None:
    """Find a rollout, trace or session by its id or the beginning of it, or by one of its spans.

    A trace or span of one rollout is that rollout.

    Args:
        trust: the recipe's `source.trust`.

    Raises:
        NothingToShow: when several ids begin so.
    """
    if (row := subject.find_rollout(name, store, trust)) is not None:
        return StoredExecution("rollout", row.rollout, row)
    rollout, traffic = _rollout_or_traffic(store, name)
    if rollout:
        rows = candidates(store, rollout, trust)
        return StoredExecution("rollout", rollout, rows[0]) if rows else None
    return None if traffic is None else StoredExecution(*traffic)


def _rollout_or_traffic(
    store: Store, name: Identifier
) -> tuple[str | None, tuple[TrafficKind, str] | None]:
    """Return the rollout of a trace or span, else the trace or session itself."""
    if traffic := subject.find_traffic(name, store):
        return (only_rollout(store, traffic[1]) if traffic[0] == "trace" else None), traffic
    if span := subject.find_span(name, store):
        return span[0] or None, ("trace", span[1])
    return None, None
