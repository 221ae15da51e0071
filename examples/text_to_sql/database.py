"""SQLite databases, opened once in a process and only read."""

import re
import sqlite3
import threading
from functools import cache
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).parent
"""Where the relative path of a database starts."""

Rows = list[list[str | int | float | None]]

_MAX_STEPS = 20_000
"""Limit in thousands of SQLite's virtual machine instructions, which ends a cross join."""


class MissingDatabase(FileNotFoundError):
    """The file of a database does not exist."""


class QueryFailed(Exception):
    """A query that SQLite refuses, that writes, or that runs too long."""


class Database:
    """A database; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise MissingDatabase(
                f"There is no database file {path}. Write the generated ones with `python "
                "tasks.py`, or the tasks of Spider's folder with `python tasks.py --data FOLDER`."
            )
        self._lock = threading.Lock()
        # One connection is shared; two cursors on it at the same time fail inside sqlite3.
        self._connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True, check_same_thread=False
        )
        # Spider has a few texts that are not UTF-8.
        self._connection.text_factory = lambda text: text.decode(errors="replace")

    def rows(self, sql: str, most: int = 100_000) -> Rows:
        """Run one SELECT and return at most `most` rows.

        Raises:
            QueryFailed: with the message of SQLite.
        """
        if not re.match(r"\s*(select|with)\b", sql, re.IGNORECASE):
            raise QueryFailed("not a SELECT statement")
        with self._lock:
            return self._read(sql, most)

    def _read(self, sql: str, most: int) -> Rows:
        steps = iter(range(_MAX_STEPS))
        self._connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
        try:
            return [list(row) for row in self._connection.execute(sql).fetchmany(most)]
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise QueryFailed(str(error)) from error
        finally:
            self._connection.set_progress_handler(None, 0)


@cache
def open_database(path: str) -> Database:
    """Open a database; a relative path starts in this folder.

    Raises:
        MissingDatabase: if there is no file.
    """
    return Database(HERE / path)
