"""The policy of query keys: they read the database `otel`, and what clients need of `system`.

ClickHouse's `readonly` forbids writes, but still allows reading the machine's files and other hosts
by table functions, functions and settings that name files. So the syntax tree of each statement is
checked, and everything that is not known to be harmless is refused.
"""

import re
from collections.abc import Mapping

from ltrain_collector.errors import ACCESS_DENIED, QueryFailed
from ltrain_collector.query.limits import Limits
from ltrain_collector.query.syntax import Node, ParsedStatement, walk_nodes
from ltrain_collector.store import Engine, quote_literal

DATABASES = ("otel", "system", "information_schema")

SYSTEM_TABLES = {
    *("aggregate_function_combinators", "asynchronous_metrics", "build_options", "codecs"),
    *("collations", "columns", "completions", "contributors", "data_skipping_indices"),
    *("data_type_families", "databases", "dictionaries", "documentation", "events", "formats"),
    *("functions", "keywords", "licenses", "metrics", "numbers", "numbers_mt", "one", "parts"),
    *("parts_columns", "projections", "settings", "table_engines", "table_functions", "tables"),
    *("time_zones", "tokenizers", "unicode", "zeros", "zeros_mt"),
}
"""Tables of `system` without other users' queries, keys, files or hosts."""

OTEL_ONLY = "database = 'otel'"
COMPLETION_CONTEXTS = (
    "aggregate function combinator pair",
    *("data type", "format", "function", "keyword", "merge tree setting", "setting"),
    *("table engine", "table function"),
)
SYSTEM_ROWS = {
    **dict.fromkeys(("columns", "data_skipping_indices", "dictionaries", "parts"), OTEL_ONLY),
    **dict.fromkeys(("parts_columns", "projections", "tables"), OTEL_ONLY),
    "databases": "name = 'otel'",
    "functions": "origin = 'System'",
    "completions": f"context IN ({', '.join(map(quote_literal, COMPLETION_CONTEXTS))})",
}
"""Conditions on tables of `system` that hide other databases from a reader."""

TABLE_FILTERS = (
    "{"
    + ", ".join(f"'system.{name}': {quote_literal(rows)}" for name, rows in SYSTEM_ROWS.items())
    + "}"
)
"""The same as ClickHouse's setting `additional_table_filters`, which also applies to subqueries,
joins, views, SHOW and `information_schema`."""

HINT = re.compile(r":? *Maybe you meant:? ([^?]*)\?\.?")
"""ClickHouse's suggestion of a name, which can be from another database."""

TABLE_FUNCTIONS = {
    *("generate_series", "generateseries", "null", "numbers", "numbers_mt", "primes", "values"),
    *("sqlstandardvalues", "zeros", "zeros_mt"),
}
"""Allowed table functions in lower case; others read files, hosts or other databases."""

SHARED_NAMES = {"format", "values", "null"}
"""Table functions whose name is also that of a harmless function."""

FORBIDDEN_FUNCTIONS = re.compile(
    r"file|catboostEvaluate|evalMLMethod|reverseDNSQuery|logTrace|joinGet\w*|"
    r"assignCentroid|generateSerialID|dict(?:Get|Has|IsIn)\w*|getClientHTTPHeader|getServerSetting|getMergeTreeSetting|showCertificate|"
    r"addressTo\w+|trap|sleep\w*|zookeeper\w*|currentRequestURL|hasColumnInTable|"
    r"ai_?(?:classify|embed|extract|filter|generate|redact|similarity|translate)\w*",
    re.IGNORECASE,
)
"""Functions that read files, call other hosts or a language model, read other databases, or delay a
query."""

TABLE_FUNCTION_NAMES = "SELECT lower(name) FROM system.table_functions"

IN_OPERATOR = re.compile(r"(?:global)?(?:not)?(?:null)?in(?:ignoreset)?", re.I)

ALLOWED_SETTINGS = re.compile(
    r"(?:max|min|cancel|output_format|date_time|join|group_by|optimize|distinct|sort|timeout|read|result|"
    r"transform|allow_experimental|aggregate|http|use|prefer|enable|merge_tree|query_plan|format_csv"
    r"|input_format|connect|receive|send|parallel|local|cast|session_timezone|extremes|final|limit|"
    r"offset|log_comment|log_queries|totals|union|any_join|count_distinct|compile|empty|"
    r"interactive|low_cardinality|preferred|short_circuit|wait_end_of_query|readonly)(?:_\w+)?|limit"
)
FORBIDDEN_SETTINGS = re.compile(
    r"schema|path|file|template|url|disk|storage|named_col|introspect|udf|memory|query_cache"
)
"""Settings that name a file or a host, enable unsafe functions, raise the reader's memory, or
return cached results of another key."""

ALLOWED_SHOW = {
    "ShowTablesQuery": {
        *("full", "databases", "settings", "changed", "dictionaries", "temporary"),
        *("not_like", "case_insensitive_like"),
    },
    "ShowColumnsQuery": {"full", "extended", "not_like", "case_insensitive_like"},
    "ShowIndexesQuery": {"extended"},
}
"""Allowed SHOW statements and their options; not MERGES, CLUSTERS or CACHES, whose rows no filter
can hide."""

DESCRIBE_STATEMENT = re.compile(
    r"(?:DESCRIBE TABLE|SHOW CREATE(?: TABLE| VIEW| DATABASE)?|EXISTS(?: TABLE| VIEW| DATABASE)?|"
    r"SHOW CREATE (?:TABLE|VIEW)) "
    r"(?:`?(?P<database>\w+)`?\.)?`?(?P<name>\w+)`?(?: FORMAT \w+)?",
)


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


class ReaderPolicy:
    """Checks the statements of query keys."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._limits = limits
        self._table_functions = TableFunctions(engine)

    def check(self, parsed: ParsedStatement, settings: Mapping[str, str], database: str) -> None:
        """Check a statement, its settings and its default database.

        Raises:
            QueryFailed: ACCESS_DENIED, with what is refused and what is allowed.
        """
        if database.lower() not in DATABASES:
            raise _denied_error(f"the database '{database}'", f"databases {', '.join(DATABASES)}")
        for name in settings:
            _check_setting(name)
        if parsed.tree is None:
            _check_text(parsed.text, database)
            return
        if not (parsed.is_read or _is_set_statement(parsed.tree)):
            raise _denied_error("this statement", "SELECT, SHOW, DESCRIBE, EXISTS and EXPLAIN")
        for key, node in walk_nodes(parsed.tree):
            self._check_node(key, node, database)

    def _check_node(self, key: str, node: Node, database: str) -> None:
        kind, name = node.get("type"), str(node.get("name", ""))
        if str(kind).startswith("Show"):
            _check_show(node)
        elif key == "table_function":
            self._check_table_function(name)
        elif kind == "Function":
            self._check_function(name)
            if IN_OPERATOR.fullmatch(name):
                for one in node["arguments"].get("children", [])[1:]:
                    if one.get("type") == "Identifier":
                        _check_table(one, database)
        elif kind == "Identifier":  # it can be the name of a function
            _check_function_name(name)
        elif kind == "TableIdentifier":
            _check_table(node, database)
        elif kind == "ExplainQuery" and not str(node.get("query", {}).get("type")).startswith(
            "Select"
        ):
            raise _denied_error("to explain this", "EXPLAIN of a SELECT")
        elif kind == "SetQuery":
            for change in node.get("changes", ()):
                _check_setting(change["name"])
                self._limits.check_setting(change["name"], _value(change))
            if node.get("default_settings"):
                raise _denied_error("SETTINGS … = DEFAULT", "a value")
        if "func_name" in node:  # of APPLY
            self._check_function(str(node["func_name"]))

    def _check_function(self, name: str) -> None:
        lower = name.lower()
        _check_function_name(name)
        if lower in self._table_functions and lower not in TABLE_FUNCTIONS | SHARED_NAMES:
            raise _denied_error(f"the function '{name}'", "functions that stay within the store")

    def _check_table_function(self, name: str) -> None:
        database, dot, _ = name.partition(".")
        if name.lower() not in TABLE_FUNCTIONS and not (dot and database == "otel"):
            raise _denied_error(f"the table function '{name}'", ", ".join(sorted(TABLE_FUNCTIONS)))


def _value(change: Node) -> object:
    value = change.get("value")
    return value.get("value") if isinstance(value, dict) else value


def without_hints(error: QueryFailed) -> QueryFailed:
    """Return an error without suggestions of names outside the database `otel`."""
    text = HINT.sub(lambda match: match[0] if _of_otel(match[1]) else "", str(error))
    return QueryFailed(text, error.code)


def _of_otel(name: str) -> bool:
    return name.startswith(("otel.", "['")) or name == "otel"


def _is_set_statement(tree: Node) -> bool:
    return tree["type"] == "SetQuery" and bool(tree.get("is_standalone"))


def _check_show(node: Node) -> None:
    words = {name for name, value in node.items() if value is True}
    if not words <= ALLOWED_SHOW.get(str(node["type"]), set()) or node["type"] not in ALLOWED_SHOW:
        raise _denied_error(
            "this SHOW", "SHOW TABLES, DATABASES, COLUMNS, INDEXES, DICTIONARIES, SETTINGS"
        )


def _check_function_name(function: str) -> None:
    if FORBIDDEN_FUNCTIONS.fullmatch(function):
        raise _denied_error(f"the function '{function}'", "functions that stay within the store")


def _check_setting(name: str) -> None:
    if name.startswith("param_"):
        return
    if not ALLOWED_SETTINGS.fullmatch(name) or FORBIDDEN_SETTINGS.search(name):
        raise _denied_error(f"the setting '{name}'", "limits, join, sort and output settings")


def _check_table(node: Node, database: str) -> None:
    if node.get("children"):
        raise _denied_error("a table whose name is a parameter", "names in the SQL itself")
    parts = node.get("name_parts") or [node["name"]]
    _check_name(database if len(parts) == 1 else ".".join(parts[:-1]), parts[-1])


def _check_text(text: str, database: str) -> None:
    match = DESCRIBE_STATEMENT.fullmatch(text)
    if not match:
        raise _denied_error("this statement", "SELECT, SHOW, DESCRIBE TABLE, EXISTS and EXPLAIN")
    if "DATABASE" in text.split(match["name"])[0]:
        _check_name(match["name"], "one")
    else:
        _check_name(match["database"] or database, match["name"])


def _check_name(database: str, table: str) -> None:
    if database.lower() not in DATABASES or (database == "system" and table not in SYSTEM_TABLES):
        what = f"{database}.{table}"
        raise _denied_error(
            f"'{what}'", "the database otel, and of system " + ", ".join(sorted(SYSTEM_TABLES))
        )


def _denied_error(what: str, allowed: str) -> QueryFailed:
    return QueryFailed(
        f"Code: {ACCESS_DENIED}. DB::Exception: A key of role 'query' cannot use {what}. "
        f"Allowed: {allowed}. (ACCESS_DENIED)",
        ACCESS_DENIED,
    )
