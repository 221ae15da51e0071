"""`ltrain.show`: in Python what `ltrain show` prints, as a page in a notebook and as frames."""

from html import escape
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.errors import UnknownName
from ltrain_instrument.settings import HOME
from ltrain_transforms.reports import (
    AnyReference,
    Cell,
    Command,
    Grid,
    Report,
    Share,
    Spark,
    format_cell,
)
from ltrain_transforms.show.lookup import look_up, look_up_in_home, look_up_in_store
from ltrain_transforms.show.pages import render_page
from ltrain_transforms.show.tree import RolloutTree

HEIGHT = 640
"""Pixels of a page in a notebook."""


class Shown:
    """A rollout, trace, session, run, dataset or policy version."""

    def __init__(self, content: RolloutTree | Report) -> None:
        self.content = content
        """The report, or the tree of calls."""

    def __repr__(self) -> str:
        return f"<{self.content.title}; frames: {', '.join(self.frames)}>"

    def _repr_html_(self) -> str:
        """Return the page for a notebook, in a frame that cannot reach the notebook."""
        page = escape(render_page(self.content))
        style = f"width: 100%; height: {HEIGHT}px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'

    @property
    def frames(self) -> tuple[str, ...]:
        """The names that `frame` takes."""
        if isinstance(self.content, Report):
            return tuple(part.title for part in self.content.parts if isinstance(part, Grid))
        return tuple(self.content.tables)

    def frame(self, name: str) -> pl.DataFrame:
        """Return a table of a report, or a derived table of a rollout, such as `calls`.

        Raises:
            UnknownName: when there is no table of this name.
        """
        if name not in self.frames:
            raise UnknownName("table", name, self.frames)
        if isinstance(self.content, RolloutTree):
            return self.content.tables[name]
        grid = next(
            part for part in self.content.parts if isinstance(part, Grid) and part.title == name
        )
        rows = [[_plain(cell) for cell in row] for row in grid.rows]
        columns = list(grid.columns)
        return pl.DataFrame(rows, columns, orient="row", infer_schema_length=None, strict=False)


def _plain(cell: Cell) -> str | float | int | None:
    return (
        format_cell(cell)
        if isinstance(cell, AnyReference | tuple | Share | Spark | Command)
        else cell
    )


def show(
    identifier: str,
    store: Store | str | None = None,
    *,
    recipe: Path | None = None,
    against: str | None = None,
) -> Shown:
    """Look up what `identifier` names, in LTRAIN_HOME and in the store, as `ltrain show` does.

    Args:
        store: an open store, or its address; the default is that of `Store.open`.
        recipe: the recipe with the rewards; the default is `ltrain.toml`, if there is one.
        against: another dataset, for a comparison.

    Raises:
        NothingToShow: when the id names nothing, or several things.
    """
    home = HOME.read()
    if not isinstance(store, Store):
        return Shown(look_up(identifier, home=home, dsn=store, recipe=recipe, against=against))
    in_home = look_up_in_home(identifier, home=home, against=against)
    return Shown(in_home or look_up_in_store(store, identifier, home, recipe))
