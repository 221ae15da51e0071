"""Questions and schemas in Spider's layout, and the tasks made of them.

tables.json               the schemas, by database
train_spider.json         questions of training; dev.json: held-out ones
database/pets/pets.sqlite the database `pets`
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from database import MissingDatabase, QueryFailed, open_database

FILES = {"train": "train_spider.json", "val": "dev.json"}

_NAMES = {str: "a text", int: "a number", list: "a list", dict: "an object"}


class BadData(ValueError):
    """A file that is not in Spider's format; the message names the entry and the field."""


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    db_id: str
    question: str
    query: str
    """The gold query."""
    schema: str
    """A line `table(column, column)` for each table."""
    database: str
    """The path of the database."""

    def as_task(self) -> dict[str, str]:
        """Return the question as a task of ltrain."""
        return {
            "id": self.id,
            "input": self.question,
            "domain": domain(self.query),
            "db_id": self.db_id,
            "database": self.database,
            "schema": self.schema,
            "query": self.query,
        }


def domain(query: str) -> str:
    """Return what a query needs: `join` of tables or selects, `order` or groups, or `simple`."""
    words = re.findall(r"\w+", query.lower())
    if "join" in words or words.count("select") > 1:
        return "join"
    return "order" if {"order", "group"} & set(words) else "simple"


def load_schemas(folder: Path) -> dict[str, str]:
    """Return the schemas of `tables.json` by database.

    Raises:
        BadData: with the entry and the field that are wrong.
    """
    return {entry.get("db_id", str): _schema(entry) for entry in _read(folder / "tables.json")}


def load_questions(folder: Path, name: str, root: str) -> list[Question]:
    """Return the questions of a file; `root` is the path of `folder` in the tasks.

    Raises:
        BadData: with the entry and the field that are wrong, a missing database included.
    """
    schemas = load_schemas(folder)
    return [_question(entry, schemas, folder, root) for entry in _read(folder / name)]


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object of a file's list, and where it is: for sentences about its fields."""

    values: dict[str, Any]
    path: Path
    number: int

    def get(self, name: str, kind: type) -> Any:
        """Return a field, which must be of a type."""
        if name not in self.values:
            raise self.fault(name, "is missing")
        value = self.values[name]
        if not isinstance(value, kind):
            raise self.fault(name, f"is {json.dumps(value)[:40]}, not {_NAMES[kind]}")
        return value

    def fault(self, name: str, problem: str) -> BadData:
        return BadData(f"{self.path}, entry {self.number}: the field `{name}` {problem}.")


def _read(path: Path) -> Iterator[_Entry]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadData(
            f"Cannot read {path}: {error}. Name a folder with tables.json, train_spider.json, "
            "dev.json and database/ of Spider."
        ) from error
    if not isinstance(entries, list) or not entries:
        raise BadData(f"{path} is not a list of objects. Take the file of Spider's download.")
    for number, values in enumerate(entries):
        if not isinstance(values, dict):
            raise BadData(f"{path}, entry {number} is not an object. An entry is one object.")
        yield _Entry(values, path, number)


def _schema(entry: _Entry) -> str:
    tables = entry.get("table_names_original", list)
    if not all(isinstance(table, str) for table in tables):
        raise entry.fault("table_names_original", "has a name that is not a text")
    columns: list[list[str]] = [[] for _ in tables]
    for place, column in enumerate(entry.get("column_names_original", list)):
        match column:
            case [int(table), str(name)] if -1 <= table < len(tables):
                if table >= 0:  # the first column is `*`, of no table
                    columns[table].append(name)
            case _:
                field = f"column_names_original[{place}]"
                raise entry.fault(field, "is not the number of a table and a name")
    return "\n".join(
        f"{table}({', '.join(names)})" for table, names in zip(tables, columns, strict=True)
    )


def _question(entry: _Entry, schemas: dict[str, str], folder: Path, root: str) -> Question:
    db_id, query = entry.get("db_id", str), entry.get("query", str)
    if db_id not in schemas:
        raise entry.fault("db_id", f"is '{db_id}', which is not in tables.json")
    database = f"database/{db_id}/{db_id}.sqlite"
    try:
        open_database(str((folder / database).absolute())).rows(query)
    except MissingDatabase as error:
        raise BadData(
            f"{entry.path}, entry {entry.number}: there is no database file {folder / database}. "
            "Take the folder `database` of Spider's download."
        ) from error
    except QueryFailed as error:
        raise entry.fault("query", f"fails in {folder / database}: {error}") from error
    return Question(
        id=f"{db_id}-{entry.number}",
        db_id=db_id,
        question=entry.get("question", str),
        query=query,
        schema=schemas[db_id],
        database=f"{root}/{database}",
    )
