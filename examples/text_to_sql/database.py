"""A small read-only SQLite database of singers, stadiums and concerts, made from a seed."""

import random
import re
import sqlite3
import threading

SCHEMA = """\
singer(name, country, age)
stadium(name, city, capacity)
concert(title, year, singer, stadium)"""
"""The schema that the agent sees."""

COUNTRIES = (
    *("France", "Japan", "Brazil", "Canada", "Spain", "Kenya", "Norway", "India"),
    *("Mexico", "Egypt", "Italy", "Germany", "Sweden", "Chile", "Ghana", "Turkey"),
)
CITIES = (
    *("Paris", "Tokyo", "Madrid", "Oslo", "Lima", "Rome", "Delhi", "Cairo"),
    *("London", "Berlin", "Vienna", "Lisbon", "Dublin", "Prague", "Athens", "Seoul"),
)
STADIUMS = (
    *("Sunset", "Harbor", "Olympia", "Meadow", "Granite", "Liberty", "Falcon", "Crown"),
    *("Maple", "Summit", "Coral", "Phoenix", "Riverside", "Arrow", "Castle", "Union"),
    *("Beacon", "Cedar", "Comet", "Garden", "Lagoon", "Marina", "Orchid", "Pioneer"),
    *("Quarry", "Ridge", "Silver", "Temple", "Valley", "Willow", "Anchor", "Zenith"),
)
YEARS = range(2000, 2022)

_FIRST_NAMES = (
    *("Ana", "Ben", "Carla", "David", "Emma", "Felix", "Gina", "Hugo", "Iris", "Jack", "Karen"),
    *("Leo", "Maria", "Nina", "Oscar", "Paula", "Quinn", "Rosa", "Sam", "Tina", "Umar", "Vera"),
)
_LAST_NAMES = ("Reed", "Stone", "Vale", "Moss", "Hale", "Frost")
_ADJECTIVES = (
    *("Silent", "Golden", "Crazy", "Summer", "Winter", "Broken", "Electric", "Happy", "Lonely"),
    *("Midnight", "Distant", "Hidden", "Gentle", "Wild"),
)
_NOUNS = (
    *("Night", "Road", "River", "Love", "Fire", "Dance", "Rain", "Dream"),
    *("Light", "Heart", "Sky", "Song"),
)
_TABLES = """\
CREATE TABLE singer (name TEXT, country TEXT, age INT);
CREATE TABLE stadium (name TEXT, city TEXT, capacity INT);
CREATE TABLE concert (title TEXT, year INT, singer TEXT, stadium TEXT);"""

_MAX_ROWS = 500
_MAX_STEPS = 200
"""Limit in thousands of SQLite's virtual machine instructions, which ends a cross join."""

Rows = list[list[str | int | float | None]]


class QueryFailed(Exception):
    """A query that SQLite refuses, that writes, or that runs too long."""


class Database:
    """The database, in memory; safe to use from several threads."""

    def __init__(self, seed: int = 7) -> None:
        self._lock = threading.Lock()
        # One connection is shared; two cursors on it at the same time fail inside sqlite3.
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        _fill(self._connection, random.Random(seed))
        self._connection.execute("PRAGMA query_only = ON")

    def rows(self, sql: str) -> Rows:
        """Run one SELECT and return at most 500 rows.

        Raises:
            QueryFailed: with the message of SQLite.
        """
        if not re.match(r"\s*(select|with)\b", sql, re.IGNORECASE):
            raise QueryFailed("not a SELECT statement")
        with self._lock:
            return self._read(sql)

    def _read(self, sql: str) -> Rows:
        steps = iter(range(_MAX_STEPS))
        self._connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
        try:
            return [list(row) for row in self._connection.execute(sql).fetchmany(_MAX_ROWS)]
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise QueryFailed(str(error)) from error
        finally:
            self._connection.set_progress_handler(None, 0)


def _fill(connection: sqlite3.Connection, chance: random.Random) -> None:
    singers = _singers(chance)
    connection.executescript(_TABLES)
    connection.executemany("INSERT INTO singer VALUES (?, ?, ?)", singers)
    connection.executemany("INSERT INTO stadium VALUES (?, ?, ?)", _stadiums(chance))
    names = [name for name, _, _ in singers]
    connection.executemany("INSERT INTO concert VALUES (?, ?, ?, ?)", _concerts(chance, names))


def _singers(chance: random.Random) -> list[tuple[str, str, int]]:
    """Two singers of each country at least, the rest at random and uneven."""
    names = [f"{first} {last}" for last in _LAST_NAMES for first in _FIRST_NAMES]
    more = chance.choices(
        COUNTRIES, range(2, 2 + len(COUNTRIES)), k=len(names) - 2 * len(COUNTRIES)
    )
    countries = [*COUNTRIES, *COUNTRIES, *more]
    return [
        (name, country, chance.randint(18, 70))
        for name, country in zip(names, countries, strict=True)
    ]


def _stadiums(chance: random.Random) -> list[tuple[str, str, int]]:
    """Two stadiums of each city, so that the largest of a city is not its only one."""
    cities = [*CITIES, *CITIES]
    chance.shuffle(cities)
    capacities = chance.sample(range(5_000, 90_000, 1_000), k=len(STADIUMS))
    return list(zip(STADIUMS, cities, capacities, strict=True))


def _concerts(chance: random.Random, singers: list[str]) -> list[tuple[str, int, str, str]]:
    """One concert a year and a stadium at least, the rest at random and uneven."""
    titles = [f"{adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS]
    chance.shuffle(titles)
    years = [*YEARS, *chance.choices(YEARS, range(2, 2 + len(YEARS)), k=len(titles) - len(YEARS))]
    stadiums = [*STADIUMS, *chance.choices(STADIUMS, k=len(titles) - len(STADIUMS))]
    chance.shuffle(stadiums)
    return [
        (title, year, chance.choice(singers), stadium)
        for title, year, stadium in zip(titles, years, stadiums, strict=True)
    ]
