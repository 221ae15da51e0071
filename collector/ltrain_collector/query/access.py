"""Check the syntax tree of a reader's statement against the policy.

The tree comes from ClickHouse's own parser. Everything that is not known to be harmless is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ltrain_collector.errors import QueryFailed
from ltrain_collector.query.limits import Limits
from ltrain_collector.query.policy import (
    CHANGE_REFUSAL,
    DATABASES,
    READER_SHOWS,
    REFUSED_FUNCTIONS,
    SYSTEM_TABLES,
    TABLE_FUNCTIONS,
    access_denied,
    allows_setting,
    denied,
)
from ltrain_collector.query.syntax import Node, ParsedStatement, walk_nodes
from ltrain_collector.store import Engine

HINT = re.compile(r":? *Maybe you meant:? ([^?]*)\?\.?")
"""ClickHouse's suggestion of a name, which can be from another database."""

FUNCTIONS_ALLOWED = "functions that stay within the database otel"

TABLE_FUNCTION_NAMES = "SELECT lower(name) FROM system.table_functions"

IN_OPERATOR = re.compile(r"(?:global)?(?:not)?(?:null)?in(?:ignoreset)?", re.I)

NAMED_STATEMENT = re.compile(
    r"(?:DESCRIBE TABLE|SHOW CREATE(?: TABLE| VIEW| DATABASE)?|EXISTS(?: TABLE| VIEW| DATABASE)?|"
    r"SHOW CREATE (?:TABLE|VIEW)) "
    r"(?:`?(?P<database>\w+)`?\.)?`?(?P<name>\w+)`?(?: FORMAT \w+)?"
)
"""A statement without a tree that names one table or database."""


class TableFunctions:
    """The engine's table functions, read from it at the first use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        """Return whether a name in lower case is a table function."""
        if not self._names:
            match = b"".join(self._engine.export(TABLE_FUNCTION_NAMES, "TSV", {})).decode()
            self._names = frozenset(match.split())
        return name in self._names


class ReaderDatabase:
    """The database of a reader's names without one: `otel`, once a migration has created it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._exists = False

    @property
    def name(self) -> str:
        if not self._exists:
            found = b"".join(self._engine.export("EXISTS DATABASE otel", "TSV", {}))
            self._exists = found.strip() == b"1"
        return "otel" if self._exists else "system"


@dataclass(frozen=True, slots=True)
class StatementCheck:
    """Checks one statement."""

    engine: Engine
    table_functions: TableFunctions
    limits: Limits
    database: str
    """The database of names without one."""

    def check(self, parsed: ParsedStatement, settings: Mapping[str, str]) -> None:
        """Check the statement, its settings and its default database."""
        if self.database.lower() not in DATABASES:
            raise denied(f"the database '{self.database}'", f"databases {', '.join(DATABASES)}")
        if not (parsed.is_read or _is_set(parsed.tree)):
            raise access_denied(CHANGE_REFUSAL)
        for name in settings:
            _check_setting(name)
        if parsed.tree is None:
            self._check_text(parsed.text)
        for key, node in walk_nodes(parsed.tree):
            self._check_names(key, node)
            self._check_node(key, node)

    def _check_node(self, key: str, node: Node) -> None:
        if node.get("type") == "Function" and key != "table_function":
            self._check_function(str(node.get("name", "")), node)
        elif node.get("type") == "SetQuery":
            for change in node.get("changes", ()):
                _check_setting(change["name"])
                self.limits.check_setting(change["name"], _value(change))
        if "func_name" in node:  # of APPLY
            self._check_function(str(node["func_name"]), node)

    def _check_names(self, key: str, node: Node) -> None:
        """Check a node's names of tables, and names that may be of functions."""
        kind, name = str(node.get("type")), str(node.get("name", ""))
        if kind.startswith("Show"):
            _check_show(node)
        elif key == "table_function":
            _check_table_function(name)
        elif kind == "Function" and IN_OPERATOR.fullmatch(name):
            for one in node["arguments"].get("children", [])[1:]:
                if _is_identifier(one):
                    self._check_table(one)
        elif kind == "Identifier":  # it can be the name of a function
            _check_function_name(name)
        elif kind == "TableIdentifier":
            self._check_table(node)
        elif kind == "ExplainQuery":
            if not str(node.get("query", {}).get("type")).startswith("Select"):
                raise denied("to explain this", "EXPLAIN of a SELECT")
        elif kind == "SetQuery" and node.get("default_settings"):
            raise denied("SETTINGS … = DEFAULT", "a value")

    def _check_function(self, name: str, node: Node) -> None:
        """Check a call; an argument can be a function's name, as in arrayMap(lower, names)."""
        passed = (node.get("arguments") or {}).get("children", ())
        for called in (name, *(str(one.get("name")) for one in passed if _is_identifier(one))):
            _check_function_name(called)
        lower = name.lower()
        # `format` is also a harmless function
        if lower in self.table_functions and lower not in TABLE_FUNCTIONS | {"format"}:
            raise denied(f"the function '{name}'", FUNCTIONS_ALLOWED)

    def _check_table(self, node: Node) -> None:
        if node.get("children"):
            raise denied("a table whose name is a parameter", "names in the SQL itself")
        parts = node.get("name_parts") or [node["name"]]
        self._check_name(self.database if len(parts) == 1 else ".".join(parts[:-1]), parts[-1])

    def _check_name(self, database: str, table: str) -> None:
        is_hidden = database == "system" and table not in SYSTEM_TABLES
        if database.lower() not in DATABASES or is_hidden:
            allowed = "the database otel, and of system " + ", ".join(sorted(SYSTEM_TABLES))
            raise denied(f"'{database}.{table}'", allowed)

    def _check_text(self, text: str) -> None:
        """Check a statement for which the parser returns one line instead of a tree."""
        match = NAMED_STATEMENT.fullmatch(text)
        if not match:
            allowed = "SELECT, SHOW, DESCRIBE TABLE, EXISTS and EXPLAIN"
            raise denied("this statement", allowed)
        if "DATABASE" in text.split(match["name"])[0]:
            self._check_name(match["name"], "one")
        else:
            self._check_name(match["database"] or self.database, match["name"])


def _is_set(tree: Node | None) -> bool:
    return tree is not None and tree["type"] == "SetQuery" and bool(tree.get("is_standalone"))


def _check_function_name(name: str) -> None:
    if REFUSED_FUNCTIONS.fullmatch(name):
        raise denied(f"the function '{name}'", FUNCTIONS_ALLOWED)


def _check_table_function(name: str) -> None:
    database, dot, _ = name.partition(".")
    if name.lower() not in TABLE_FUNCTIONS and not (dot and database == "otel"):
        raise denied(f"the table function '{name}'", ", ".join(sorted(TABLE_FUNCTIONS)))


def _check_show(node: Node) -> None:
    words = {name for name, value in node.items() if value is True}
    options = READER_SHOWS.get(str(node["type"]))
    if options is None or not words <= options:
        allowed = "SHOW TABLES, DATABASES, COLUMNS, INDEXES, DICTIONARIES, SETTINGS"
        raise denied("this SHOW", allowed)


def _check_setting(name: str) -> None:
    if not allows_setting(name):
        raise denied(f"the setting '{name}'", "limits, join, sort and output settings")


def _is_identifier(argument: Node) -> bool:
    return argument.get("type") == "Identifier"


def _value(change: Node) -> object:
    value = change.get("value")
    return value.get("value") if isinstance(value, dict) else value


def without_hints(error: QueryFailed) -> QueryFailed:
    """Return an error without suggestions of names outside the database `otel`."""
    text = HINT.sub(lambda match: match[0] if _of_otel(match[1]) else "", str(error))
    return QueryFailed(text, error.code)


def _of_otel(name: str) -> bool:
    return name.startswith(("otel.", "['")) or name == "otel"
