"""ltrain's tables and views: the SQL files of `ddl/`, and which of them a store needs.

A step is a file of statements that can run any number of times: each has `IF NOT EXISTS`. New steps
go to the end of their table's list; a later step changes a table, never the step that created it.
The steps that change promoted columns are made from their list.
Every migration creates the views again.
"""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from ltrain_collector import client_events, promoted_columns
from ltrain_collector.signals import TABLES, Table

DATABASE = "01_database"
"""The first step: it creates the database and the table that records the steps."""

OWN_COLUMN = "Precedence"
"""A column that ltrain's tables have and tables created by the exporter do not."""

USER_VIEWS = ("06_user_views", "07_report_views")
"""The views for users, made from those of the signals."""

RENAMED_VIEWS = "09_renamed_views"
"""The step that drops the views that have another name now, whoever owns the tables."""

VIEWS = "views"
"""The step recorded after the views are created; its version tells which ltrain created them."""

VERSION = f"SELECT max(version) AS version FROM otel.ltrain_migrations WHERE step = '{VIEWS}'"
"""SQL that reads how many steps the ltrain knew that created the store's views; 0: no views."""


def ordered_read_settings(max_bytes: int = 1_000_000) -> str:
    """Return settings that read a table in the order of its key with little memory.

    Args:
        max_bytes: size of a block, and of one column of a block.
    """
    return (
        "SETTINGS max_threads = 1, max_block_size = 1024, "
        f"preferred_block_size_bytes = {max_bytes}, "
        f"preferred_max_column_in_block_size_bytes = {max_bytes}, read_in_order_use_buffering = 0, "
        "enable_automatic_decision_for_merging_across_partitions_for_final = 0"
    )


KEY = "ORDER BY RunId, RolloutId, Attempt, TraceId, Timestamp, SpanId"

ROLLOUT_ORDER = f"{KEY} {ordered_read_settings()}"
"""The end of a query of `otel.spans` that streams one rollout after another: ClickHouse merges the
parts while it reads them, with a few blocks of each in memory. A sort or larger blocks would take
gigabytes."""

MONTH_ORDER = f"{KEY} {ordered_read_settings(4_000_000)}"
"""The same for one month, which has few parts: larger blocks need less CPU per row."""


def insert_target(table: str, into: str = "") -> str:
    """Return what follows `INSERT INTO`: the table, or `into` in its place, and its columns."""
    return f"{into or table} ({', '.join(f'`{name}`' for name in TABLES[table].columns)})"


def read_statements(name: str, **placeholders: str) -> Iterator[str]:
    """Yield the statements of a step or view: of the file `name`, or those that Python makes.

    Each `{placeholder}` of a file is replaced by its value.
    """
    if name in client_events.STEPS:
        yield from client_events.step_statements(name)
        return
    if changes := list(promoted_columns.step_statements(name)):
        yield from changes
        return
    text = _ddl(name).read_text()
    for placeholder, value in (promoted_columns.PLACEHOLDERS | placeholders).items():
        text = text.replace(f"{{{placeholder}}}", value)
    for statement in text.split(";\n"):
        if statement.strip():
            yield statement.strip()


def view_files(table: Table, own: bool) -> Iterator[str]:
    """Yield the files of a table's views; one of `own` columns, or one that an exporter created.

    The view of an exporter's table has a file of its own where it cannot read ltrain's columns.
    """
    for name in table.view_files:
        exporters = f"{name}_exporter"
        yield name if own or not _ddl(exporters).is_file() else exporters


def _ddl(name: str) -> Traversable:
    return files("ltrain_collector").joinpath("ddl", f"{name}.sql")


def steps() -> tuple[str, ...]:
    """Return the names of all steps, in order."""
    table_steps = (step for table in TABLES.values() for step in table.steps)
    return (DATABASE, *dict.fromkeys(table_steps), RENAMED_VIEWS, *client_events.STEPS)
