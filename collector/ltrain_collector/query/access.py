"""What a key that only reads may ask: the database `otel`, and what clients need of `system`.

ClickHouse's own `readonly` keeps it from writing, but lets it read the machine's files and reach
other hosts by table functions, by functions, and by settings that name files. So the tree of a
statement is looked at, and what is not known to be harmless is refused.
"""

import re
from collections.abc import Mapping

from ltrain_collector.engine import Engine, literal
from ltrain_collector.errors import QueryFailed
from ltrain_collector.query.limits import Limits
from ltrain_collector.query.syntax import Node, Parsed, nodes

DENIED = 497
"""ClickHouse's ACCESS_DENIED."""

DATABASES = ("otel", "system", "information_schema")

SYSTEM = {
    *("aggregate_function_combinators", "asynchronous_metrics", "build_options", "codecs"),
    *("collations", "columns", "completions", "contributors", "data_skipping_indices"),
    *("data_type_families", "databases", "dictionaries", "documentation", "events", "formats"),
    *("functions", "keywords", "licenses", "metrics", "numbers", "numbers_mt", "one", "parts"),
    *("parts_columns", "projections", "settings", "table_engines", "table_functions", "tables"),
    *("time_zones", "tokenizers", "unicode", "zeros", "zeros_mt"),
}
"""Tables of `system` that say nothing of other people's queries, keys, files or hosts."""

OWN = "database = 'otel'"
WORDS = (
    "aggregate function combinator pair",
    *("data type", "format", "function", "keyword", "merge tree setting", "setting"),
    *("table engine", "table function"),
)
ROWS = {
    **dict.fromkeys(("columns", "data_skipping_indices", "dictionaries", "parts"), OWN),
    **dict.fromkeys(("parts_columns", "projections", "tables"), OWN),
    "databases": "name = 'otel'",
    "functions": "origin = 'System'",
    "completions": f"context IN ({', '.join(map(literal, WORDS))})",
}
"""Rows of tables of `system` that a reader gets: those about other databases are left out."""

FILTERS = "{" + ", ".join(f"'system.{name}': {literal(rows)}" for name, rows in ROWS.items()) + "}"
"""The same as ClickHouse's setting `additional_table_filters`, which also holds in subqueries, in
joins, in views and in what SHOW and `information_schema` are made of."""

HINT = re.compile(r":? *Maybe you meant:? ([^?]*)\?\.?")
"""ClickHouse's guess at a name, which may be of another database."""

TABLE_FUNCTIONS = {
    *("generate_series", "generateseries", "null", "numbers", "numbers_mt", "primes", "values"),
    *("sqlstandardvalues", "zeros", "zeros_mt"),
}
"""In lower case. All others read files, hosts, other databases, or run what they are given."""

BOTH = {"format", "values", "null"}
"""Table functions that share their name with a harmless function."""

FUNCTIONS = re.compile(
    r"file|catboostEvaluate|evalMLMethod|reverseDNSQuery|logTrace|joinGet\w*|"
    r"assignCentroid|generateSerialID|dict(?:Get|Has|IsIn)\w*|getClientHTTPHeader|getServerSetting|getMergeTreeSetting|showCertificate|"
    r"addressTo\w+|trap|sleep\w*|zookeeper\w*|currentRequestURL|hasColumnInTable|"
    r"ai_?(?:classify|embed|extract|filter|generate|redact|similarity|translate)\w*",
    re.IGNORECASE,
)
"""Functions that read files, ask other hosts or a language model, look into other databases, or
hold a query up."""

OUTSIDE = "SELECT lower(name) FROM system.table_functions"

IN = re.compile(r"(?:global)?(?:not)?(?:null)?in(?:ignoreset)?", re.I)

SETTINGS = re.compile(
    r"(?:max|min|cancel|output_format|date_time|join|group_by|optimize|distinct|sort|timeout|read|result|"
    r"transform|allow_experimental|aggregate|http|use|prefer|enable|merge_tree|query_plan|format_csv"
    r"|input_format|connect|receive|send|parallel|local|cast|session_timezone|extremes|final|limit|"
    r"offset|log_comment|log_queries|totals|union|any_join|count_distinct|compile|empty|"
    r"interactive|low_cardinality|preferred|short_circuit|wait_end_of_query|readonly)(?:_\w+)?|limit"
)
SETTINGS_NEVER = re.compile(
    r"schema|path|file|template|url|disk|storage|named_col|introspect|udf|memory|query_cache"
)
"""Settings that name a file or a host, open a door, lift the reader's share of memory, or show what
another key was answered."""

SHOWING = {
    "ShowTablesQuery": {
        *("full", "databases", "settings", "changed", "dictionaries", "temporary"),
        *("not_like", "case_insensitive_like"),
    },
    "ShowColumnsQuery": {"full", "extended", "not_like", "case_insensitive_like"},
    "ShowIndexesQuery": {"extended"},
}
"""What SHOW may show, and the words that may stand in it: not MERGES, CLUSTERS or CACHES, whose
rows no filter leaves out."""

DESCRIBING = re.compile(
    r"(?:DESCRIBE TABLE|SHOW CREATE(?: TABLE| VIEW| DATABASE)?|EXISTS(?: TABLE| VIEW| DATABASE)?|"
    r"SHOW CREATE (?:TABLE|VIEW)) "
    r"(?:`?(?P<database>\w+)`?\.)?`?(?P<name>\w+)`?(?: FORMAT \w+)?",
)


class TableFunctions:
    """The engine's table functions, read from it when they are first asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        """Return whether a name in lower case is one of them."""
        if not self._names:
            found = b"".join(self._engine.formatted(OUTSIDE, "TSV", {})).decode()
            self._names = frozenset(found.split())
        return name in self._names


class Reader:
    """Decides for keys that only read."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._limits = limits
        self._outside = TableFunctions(engine)

    def check(self, parsed: Parsed, settings: Mapping[str, str], database: str) -> None:
        """Let it pass.

        Raises:
            QueryFailed: ACCESS_DENIED, with what is refused and what is allowed.
        """
        if database.lower() not in DATABASES:
            raise _denied(f"the database '{database}'", f"databases {', '.join(DATABASES)}")
        for name in settings:
            _check_setting(name)
        if parsed.tree is None:
            _check_text(parsed.text, database)
            return
        if not (parsed.reads or _sets(parsed.tree)):
            raise _denied("this statement", "SELECT, SHOW, DESCRIBE, EXISTS and EXPLAIN")
        for key, node in nodes(parsed.tree):
            self._check_node(key, node, database)

    def _check_node(self, key: str, node: Node, database: str) -> None:
        kind, name = node.get("type"), str(node.get("name", ""))
        if str(kind).startswith("Show"):
            _check_show(node)
        elif key == "table_function":
            self._check_table_function(name)
        elif kind == "Function":
            self._check_function(name)
            if IN.fullmatch(name):
                for one in node["arguments"].get("children", [])[1:]:
                    if one.get("type") == "Identifier":
                        _check_table(one, database)
        elif kind == "Identifier":  # a function may be given by its name
            _check_named(name)
        elif kind == "TableIdentifier":
            _check_table(node, database)
        elif kind == "ExplainQuery" and not str(node.get("query", {}).get("type")).startswith(
            "Select"
        ):
            raise _denied("to explain this", "EXPLAIN of a SELECT")
        elif kind == "SetQuery":
            for change in node.get("changes", ()):
                _check_setting(change["name"])
                self._limits.check_setting(change["name"], _value(change))
            if node.get("default_settings"):
                raise _denied("SETTINGS … = DEFAULT", "a value")
        if "func_name" in node:  # of APPLY
            self._check_function(str(node["func_name"]))

    def _check_function(self, name: str) -> None:
        lower = name.lower()
        _check_named(name)
        if lower in self._outside and lower not in TABLE_FUNCTIONS | BOTH:
            raise _denied(f"the function '{name}'", "functions that stay within the store")

    def _check_table_function(self, name: str) -> None:
        database, dot, _ = name.partition(".")
        if name.lower() not in TABLE_FUNCTIONS and not (dot and database == "otel"):
            raise _denied(f"the table function '{name}'", ", ".join(sorted(TABLE_FUNCTIONS)))


def _value(change: Node) -> object:
    value = change.get("value")
    return value.get("value") if isinstance(value, dict) else value


def without_hints(error: QueryFailed) -> QueryFailed:
    """Return an error without ClickHouse's guesses at names outside the database `otel`."""
    text = HINT.sub(lambda found: found[0] if _of_otel(found[1]) else "", str(error))
    return QueryFailed(text, error.code)


def _of_otel(name: str) -> bool:
    return name.startswith(("otel.", "['")) or name == "otel"


def _sets(tree: Node) -> bool:
    return tree["type"] == "SetQuery" and bool(tree.get("is_standalone"))


def _check_show(node: Node) -> None:
    words = {name for name, value in node.items() if value is True}
    if not words <= SHOWING.get(str(node["type"]), set()) or node["type"] not in SHOWING:
        raise _denied(
            "this SHOW", "SHOW TABLES, DATABASES, COLUMNS, INDEXES, DICTIONARIES, SETTINGS"
        )


def _check_named(function: str) -> None:
    if FUNCTIONS.fullmatch(function):
        raise _denied(f"the function '{function}'", "functions that stay within the store")


def _check_setting(name: str) -> None:
    if name.startswith("param_"):
        return
    if not SETTINGS.fullmatch(name) or SETTINGS_NEVER.search(name):
        raise _denied(f"the setting '{name}'", "limits, join, sort and output settings")


def _check_table(node: Node, database: str) -> None:
    if node.get("children"):
        raise _denied("a table whose name is a parameter", "names in the SQL itself")
    parts = node.get("name_parts") or [node["name"]]
    _check_name(database if len(parts) == 1 else ".".join(parts[:-1]), parts[-1])


def _check_text(text: str, database: str) -> None:
    found = DESCRIBING.fullmatch(text)
    if not found:
        raise _denied("this statement", "SELECT, SHOW, DESCRIBE TABLE, EXISTS and EXPLAIN")
    if "DATABASE" in text.split(found["name"])[0]:
        _check_name(found["name"], "one")
    else:
        _check_name(found["database"] or database, found["name"])


def _check_name(database: str, table: str) -> None:
    if database.lower() not in DATABASES or (database == "system" and table not in SYSTEM):
        what = f"{database}.{table}"
        raise _denied(f"'{what}'", "the database otel, and of system " + ", ".join(sorted(SYSTEM)))


def _denied(what: str, allowed: str) -> QueryFailed:
    return QueryFailed(
        f"Code: {DENIED}. DB::Exception: A key of role 'query' may not use {what}. "
        f"Allowed: {allowed}. (ACCESS_DENIED)",
        DENIED,
    )
