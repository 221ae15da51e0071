"""Databases and questions of the themes, made from a seed and written in Spider's layout."""

import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spider import FILES

THEMES = Path(__file__).with_name("themes.json")
YEARS = range(2004, 2020)
PLACES = 6
"""Places of a database that have events."""
QUESTIONS = {"table": 2, "event": 4}
"""Questions of each form, with different values."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of persons, firms or places, with a name, a text and a number in each row."""

    name: str
    plural: str
    text: str
    """Its column of texts."""
    chosen: str
    """How a question chooses rows by that column, such as `from {x}`."""
    number: str
    """Its column of numbers."""
    numbers: list[int]
    """Start, stop and step of the numbers."""
    texts: list[str]
    names: list[str]


@dataclass(frozen=True, slots=True)
class Events:
    """A table of events, each with a name, a year, an actor and a place."""

    name: str
    plural: str
    key: str
    """Its column of names."""
    held: str
    """How a question chooses events by the year, such as `held in {x}`."""
    at: str
    """How a question chooses events by the place, such as `at the stadium {x}`."""
    names: list[str]


@dataclass(frozen=True, slots=True)
class Theme:
    db_id: str
    actors: Table
    places: Table
    events: Events


@dataclass(frozen=True, slots=True)
class Form:
    question: str
    query: str
    slot: str
    """What `{x}` is."""


TABLE_FORMS = (
    Form(
        "How many {t.plural} are {t.chosen}?",
        "SELECT count(*) FROM {t.name} WHERE {t.text} = '{{x}}'",
        "text",
    ),
    Form(
        "What are the names of the {t.plural} {t.chosen}?",
        "SELECT name FROM {t.name} WHERE {t.text} = '{{x}}'",
        "text",
    ),
    Form(
        "What is the average {t.number} of the {t.plural} {t.chosen}?",
        "SELECT avg({t.number}) FROM {t.name} WHERE {t.text} = '{{x}}'",
        "text",
    ),
    Form(
        "How many {t.plural} have {a} {t.number} above {{x}}?",
        "SELECT count(*) FROM {t.name} WHERE {t.number} > {{x}}",
        "number",
    ),
    Form(
        "Which {t.plural} have {a} {t.number} above {{x}}? Give their names.",
        "SELECT name FROM {t.name} WHERE {t.number} > {{x}}",
        "number",
    ),
    Form(
        "What is the {t.number} of the {t.name} named {{x}}?",
        "SELECT {t.number} FROM {t.name} WHERE name = '{{x}}'",
        "name",
    ),
    Form(
        "What is the {t.text} of the {t.name} named {{x}}?",
        "SELECT {t.text} FROM {t.name} WHERE name = '{{x}}'",
        "name",
    ),
    Form(
        "What are the names of the {{x}} {t.plural} with the highest {t.number}?",
        "SELECT name FROM {t.name} ORDER BY {t.number} DESC LIMIT {{x}}",
        "few",
    ),
)
EVENT_FORMS = (
    Form(
        "How many {e.plural} were {e.held}?",
        "SELECT count(*) FROM {e.name} WHERE year = {{x}}",
        "year",
    ),
    Form(
        "What are the {e.key}s of the {e.plural} {e.held}?",
        "SELECT {e.key} FROM {e.name} WHERE year = {{x}}",
        "year",
    ),
    Form(
        "What are the {e.key}s of the {e.plural} {e.at}?",
        "SELECT {e.key} FROM {e.name} WHERE {p.name} = '{{x}}'",
        "place",
    ),
    Form(
        "What is the {p.text} of the {p.name} of the {e.name} {{x}}?",
        "SELECT {p.text} FROM {p.name} JOIN {e.name} ON {p.name}.name = {e.name}.{p.name} "
        "WHERE {e.key} = '{{x}}'",
        "event",
    ),
)


def load_themes() -> dict[str, list[Theme]]:
    """Return the themes of training and the held-out ones."""
    return {
        side: [
            Theme(
                theme["db_id"],
                Table(**theme["actors"]),
                Table(**theme["places"]),
                Events(**theme["events"]),
            )
            for theme in themes
        ]
        for side, themes in json.loads(THEMES.read_text()).items()
    }


def write(folder: Path, seed: int) -> None:
    """Write `tables.json`, the files of questions and the databases into a folder."""
    schemas: list[Entry] = []
    for file, themes in zip(FILES.values(), load_themes().values(), strict=True):
        made: list[Entry] = []
        for theme in themes:
            made += questions(theme, seed)
            schemas.append(describe(theme))
            path = folder / "database" / theme.db_id / f"{theme.db_id}.sqlite"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(make_database(theme, seed))
        _write_json(folder / file, made)
    _write_json(folder / "tables.json", schemas)


def _write_json(path: Path, entries: list[Entry]) -> None:
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    path.write_text(f"[\n{lines}\n]\n")


def describe(theme: Theme) -> Entry:
    """Return the schema of a theme as Spider's `tables.json` has it."""
    tables = _columns(theme)
    columns = [(number, name) for number, columns in enumerate(tables.values()) for name in columns]
    places = {column: place for place, column in enumerate(columns, 1)}
    keys = [places[number, next(iter(columns))] for number, columns in enumerate(tables.values())]
    references = (theme.actors.name, theme.places.name)
    names = [[-1, "*"], *map(list, columns)]
    types = [kind for columns in tables.values() for kind in columns.values()]
    return {
        "db_id": theme.db_id,
        "table_names_original": [*tables],
        "table_names": [*tables],
        "column_names_original": names,
        "column_names": names,
        "column_types": ["text", *types],
        "primary_keys": keys,
        "foreign_keys": [
            [places[2, name], key] for name, key in zip(references, keys, strict=False)
        ],
    }


def _columns(theme: Theme) -> dict[str, dict[str, str]]:
    """Return the types of the columns of each table, in Spider's words; a key comes first."""
    things = {
        table.name: {"name": "text", table.text: "text", table.number: "number"}
        for table in (theme.actors, theme.places)
    }
    actor, place, events = theme.actors.name, theme.places.name, theme.events
    return things | {
        events.name: {events.key: "text", "year": "number", actor: "text", place: "text"}
    }


def make_database(theme: Theme, seed: int) -> bytes:
    """Return the SQLite file of a theme."""
    chance = random.Random(f"{seed}/{theme.db_id}")
    rows: dict[str, Sequence[tuple[Any, ...]]] = {
        theme.actors.name: _things(theme.actors, chance),
        theme.places.name: _things(theme.places, chance),
        theme.events.name: _events(theme, chance),
    }
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("PRAGMA page_size = 1024")  # a file of 10 kB, not of 40
        for statement in _statements(theme):
            connection.execute(statement)
        for table, values in rows.items():
            marks = ", ".join("?" for _ in values[0])
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        connection.commit()
        return connection.serialize()


def _statements(theme: Theme) -> Iterator[str]:
    types = {"text": "TEXT", "number": "INTEGER"}
    for table, columns in _columns(theme).items():
        lines = [f"{name} {types[kind]}" for name, kind in columns.items()]
        lines[0] += " PRIMARY KEY"
        if table == theme.events.name:
            for number, thing in ((2, theme.actors), (3, theme.places)):
                lines[number] += f" REFERENCES {thing.name}(name)"
        yield f"CREATE TABLE {table} ({', '.join(lines)})"


def _things(table: Table, chance: random.Random) -> list[tuple[str, str, int]]:
    """Each text occurs about equally often, and each number once."""
    first, *texts = [table.texts[place % len(table.texts)] for place in range(len(table.names))]
    chance.shuffle(texts)
    texts = [first, *texts]
    numbers = chance.sample(range(*table.numbers), len(table.names))
    return list(zip(table.names, texts, numbers, strict=True))


def _events(theme: Theme, chance: random.Random) -> list[tuple[str, int, str, str]]:
    """Each year and each of the first places has an event at least."""
    names, used = theme.events.names, theme.places.names[:PLACES]
    years = [*YEARS, *chance.choices(YEARS, k=len(names) - len(YEARS))]
    places = [*used, *chance.choices(used, k=len(names) - PLACES)]
    chance.shuffle(places)
    return [
        (name, year, chance.choice(theme.actors.names), place)
        for name, year, place in zip(names, years, places, strict=True)
    ]


def questions(theme: Theme, seed: int) -> list[Entry]:
    """Return the questions of a theme in Spider's JSON."""
    chance = random.Random(f"{seed}/{theme.db_id}/questions")
    return [
        {
            "db_id": theme.db_id,
            "question": form.question.format(**names).format(x=value),
            "query": form.query.format(**names).format(x=value),
        }
        for form, names, values in _forms(theme)
        for value in chance.sample(values, QUESTIONS["table" if "t" in names else "event"])
    ]


def _forms(theme: Theme) -> Iterator[tuple[Form, dict[str, Any], Sequence[Any]]]:
    """Yield each form with what its templates name, and the values of its slot.

    The first row of a table is that of the agent's worked examples: no question has its values.
    """
    for table in (theme.actors, theme.places):
        numbers = range(*table.numbers)
        values: dict[str, Sequence[Any]] = {
            "text": table.texts[1:],
            "number": [numbers[len(numbers) * tenth // 10] for tenth in range(2, 9)],
            "name": table.names[1:],
            "few": range(2, 6),
        }
        for form in TABLE_FORMS:
            article = "an" if table.number[0] in "aei" else "a"
            yield form, {"t": table, "a": article}, values[form.slot]
    events = theme.events
    values = {"year": YEARS, "place": theme.places.names[:PLACES], "event": events.names}
    for form in EVENT_FORMS:
        yield form, {"e": events, "p": theme.places}, values[form.slot]
