"""What a statement is, by ClickHouse's own parser, before it runs.

One request is one statement, as on a server: chDB by itself would run several, and would write what
INTO OUTFILE names.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ltrain_collector.engine import Engine, literal
from ltrain_collector.errors import QueryFailed

Node = dict[str, Any]

NO_TREE = 36
"""BAD_ARGUMENTS: the parser has no tree for DESCRIBE, SHOW CREATE, GRANT and inline data."""

OUTFILE = re.compile(r"\b(INTO OUTFILE|FROM INFILE)\b", re.I)
READING = re.compile(r"(?:Select|Explain|Show)\w*$")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A statement; `tree` is None where the parser gives none, then `text` is its one line."""

    tree: Node | None
    text: str = ""

    @property
    def kind(self) -> str:
        """The type of its tree: SelectWithUnionQuery, SetQuery, CreateQuery, …; '' without one."""
        return str(self.tree["type"]) if self.tree else ""

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        words = self.text.upper().split(" ", 1)[0]
        return bool(READING.match(self.kind)) or words in ("DESCRIBE", "SHOW", "EXISTS")

    @property
    def form(self) -> str | None:
        """The format that it asks for."""
        found = self.tree.get("format_ast") if self.tree else None
        return found["name"] if found else None


def parse(engine: Engine, sql: str, limits: Mapping[str, str] | None = None) -> Parsed:
    """Read one statement.

    Args:
        limits: settings of ClickHouse's parser.

    Raises:
        QueryFailed: with ClickHouse's own error when it is none, or more than one.
    """
    try:
        parsed = Parsed(orjson.loads(_ask(engine, "parseQueryToJSON", sql, limits or {})))
    except orjson.JSONDecodeError as error:
        raise too_deep() from error
    except QueryFailed as error:
        if error.code != NO_TREE:
            raise
        parsed = Parsed(None, _ask(engine, "formatQuerySingleLine", sql, limits or {}).strip())
    if (parsed.tree and "out_file" in parsed.tree) or OUTFILE.search(parsed.text):
        raise QueryFailed("Code: 348. DB::Exception: INTO OUTFILE is not allowed", 348)
    if any("infile" in node for _, node in nodes(parsed.tree)):
        raise QueryFailed("Code: 348. DB::Exception: FROM INFILE is not allowed", 348)
    return parsed


def nodes(value: Any, key: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every node of a tree with the key that it stands at."""
    if isinstance(value, dict):
        if "type" in value or "func_name" in value:
            yield key, value
        for name, below in value.items():
            if (value.get("type"), name) != ("ExplainQuery", "settings"):  # of the explanation
                yield from nodes(below, name)
    elif isinstance(value, list):
        for below in value:
            yield from nodes(below, key)


def too_deep() -> QueryFailed:
    """Return the error of a statement that is nested too deeply to be looked at."""
    return QueryFailed(
        "Code: 306. DB::Exception: The statement is nested too deeply. Write it with fewer levels "
        "of expressions and subqueries. (TOO_DEEP_RECURSION)",
        306,
    )


def _ask(engine: Engine, function: str, sql: str, limits: Mapping[str, str]) -> str:
    # a parameter would be unescaped once more than the statement is when it runs
    asked = f"SELECT {function}({literal(sql)})"
    try:
        parts = engine.formatted(asked, "TSVRaw", {**limits, "max_query_size": str(1 << 30)})
        return b"".join(parts).decode()
    except QueryFailed as error:
        said, _, _ = str(error).partition(": In scope SELECT ")
        code = {62: " (SYNTAX_ERROR)"}.get(error.code, "")
        raise QueryFailed(said + code, error.code) from error
