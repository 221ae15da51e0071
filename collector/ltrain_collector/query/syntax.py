"""Parse a statement with ClickHouse's own parser before it runs.

A request contains one statement, as for a server: chDB itself would run several, and would write
the file of INTO OUTFILE.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Engine, quote_literal

Node = dict[str, Any]

NO_TREE = 36
"""BAD_ARGUMENTS: the parser returns no tree for DESCRIBE, SHOW CREATE, GRANT and inline data."""

OUTFILE = re.compile(r"\b(INTO OUTFILE|FROM INFILE)\b", re.I)
READING_KIND = re.compile(r"(?:Select|Explain|Show)\w*$")


@dataclass(frozen=True, slots=True)
class ParsedStatement:
    """A parsed statement; where the parser returns no tree, `text` is the statement in one line."""

    tree: Node | None
    text: str = ""

    @property
    def kind(self) -> str:
        """The type of the tree: SelectWithUnionQuery, SetQuery, CreateQuery, …; '' without one."""
        return str(self.tree["type"]) if self.tree else ""

    @property
    def is_read(self) -> bool:
        """Whether the statement only reads."""
        words = self.text.upper().split(" ", 1)[0]
        return bool(READING_KIND.match(self.kind)) or words in ("DESCRIBE", "SHOW", "EXISTS")

    @property
    def form(self) -> str | None:
        """The format of its FORMAT clause."""
        node = self.tree.get("format_ast") if self.tree else None
        return node["name"] if node else None


def parse_statement(
    engine: Engine, sql: str, limits: Mapping[str, str] | None = None
) -> ParsedStatement:
    """Parse one statement.

    Args:
        limits: settings of ClickHouse's parser.
    """
    try:
        parsed = ParsedStatement(
            orjson.loads(_call_parser(engine, "parseQueryToJSON", sql, limits or {}))
        )
    except orjson.JSONDecodeError as error:
        raise too_deep_error() from error
    except QueryFailed as error:
        if error.code != NO_TREE:
            raise
        parsed = ParsedStatement(
            None, _call_parser(engine, "formatQuerySingleLine", sql, limits or {}).strip()
        )
    if (parsed.tree and "out_file" in parsed.tree) or OUTFILE.search(parsed.text):
        raise QueryFailed("Code: 348. DB::Exception: INTO OUTFILE is not allowed", 348)
    if any("infile" in node for _, node in walk_nodes(parsed.tree)):
        raise QueryFailed("Code: 348. DB::Exception: FROM INFILE is not allowed", 348)
    return parsed


def walk_nodes(value: Any, key: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every node of a tree with its key in the parent."""
    if isinstance(value, dict):
        if "type" in value or "func_name" in value:
            yield key, value
        for name, below in value.items():
            if (value.get("type"), name) != ("ExplainQuery", "settings"):  # of the explanation
                yield from walk_nodes(below, name)
    elif isinstance(value, list):
        for below in value:
            yield from walk_nodes(below, key)


def too_deep_error() -> QueryFailed:
    """Return the error of a statement that is nested too deeply to check."""
    return QueryFailed(
        "Code: 306. DB::Exception: The statement is nested too deeply. Write it with fewer levels "
        "of expressions and subqueries. (TOO_DEEP_RECURSION)",
        306,
    )


def _call_parser(engine: Engine, function: str, sql: str, limits: Mapping[str, str]) -> str:
    # a query parameter would be unescaped once more than the statement itself
    query = f"SELECT {function}({quote_literal(sql)})"
    try:
        parts = engine.export(query, "TSVRaw", {**limits, "max_query_size": str(1 << 30)})
        return b"".join(parts).decode()
    except QueryFailed as error:
        message, _, _ = str(error).partition(": In scope SELECT ")
        code = {62: " (SYNTAX_ERROR)"}.get(error.code, "")
        raise QueryFailed(message + code, error.code) from error
