"""The policy of readers at the ClickHouse port: every request without an admin key has it.

| | a reader | an admin key |
|---|---|---|
| statements | that read, and SET | all |
| functions | that stay within the database `otel` | all |
| settings | a list | all |
| tables | `otel`, and a list of `system` | all |

ClickHouse's `readonly` forbids writes, but still allows reading the machine's files and other hosts
by table functions, functions and settings that name files. Readers also trust rows by the sender
that ingest recorded, so no statement without an admin key may write or remove rows.
"""

import re

from ltrain_collector.errors import ACCESS_DENIED, READ_ONLY_REFUSAL, QueryFailed
from ltrain_collector.store import quote_literal

DATABASES = ("otel", "system", "information_schema")
"""The databases of readers."""


def access_denied(sentence: str) -> QueryFailed:
    """Return the error ACCESS_DENIED with a sentence."""
    text = f"Code: {ACCESS_DENIED}. DB::Exception: {sentence} (ACCESS_DENIED)"
    return QueryFailed(text, ACCESS_DENIED)


REFUSED_FUNCTIONS = re.compile(
    r"file|catboostEvaluate|evalMLMethod|reverseDNSQuery|showCertificate|addressTo\w+|trap|"
    r"zookeeper\w*|hasColumnInTable|"
    r"ai_?(?:classify|embed|extract|filter|generate|redact|similarity|translate)\w*|"
    r"logTrace|joinGet\w*|assignCentroid|generateSerialID|dict(?:Get|Has|IsIn)\w*|"
    r"getClientHTTPHeader|getServerSetting|getMergeTreeSetting|sleep\w*|currentRequestURL",
    re.IGNORECASE,
)
"""Functions that read files, call other hosts or a language model, read other databases, or delay a
query."""

TABLE_FUNCTIONS = frozenset(
    {
        *("generate_series", "generateseries", "null", "numbers", "numbers_mt", "primes"),
        *("values", "sqlstandardvalues", "zeros", "zeros_mt"),
    }
)
"""Table functions that read only their arguments."""

READER_SETTINGS = re.compile(
    r"(?:max|min|cancel|output_format|date_time|join|group_by|optimize|distinct|sort|timeout|read|"
    r"result|transform|allow_experimental|aggregate|http|use|prefer|enable|merge_tree|query_plan|"
    r"format_csv|input_format|connect|receive|send|parallel|local|cast|session_timezone|extremes|"
    r"final|limit|offset|log_comment|log_queries|totals|union|any_join|count_distinct|compile|"
    r"empty|interactive|low_cardinality|preferred|short_circuit|wait_end_of_query|readonly)"
    r"(?:_\w+)?"
)
"""Limits, and settings of joins, sorts and output."""

READER_REFUSED_SETTINGS = re.compile(
    r"schema|path|file|template|url|disk|storage|named_col|introspect|udf|memory|query_cache|"
    r"parallel_replicas"
)
"""Parts of the names of settings that name a file or a host, enable unsafe functions, raise the
reader's memory, return cached results of another key, or contain SQL."""

COMPLETION_CONTEXTS = (
    "aggregate function combinator pair",
    *("data type", "format", "function", "keyword", "merge tree setting", "setting"),
    *("table engine", "table function"),
)
OTEL_ONLY = "database = 'otel'"
SYSTEM_ROWS = {
    **dict.fromkeys(("columns", "data_skipping_indices", "dictionaries", "parts"), OTEL_ONLY),
    **dict.fromkeys(("parts_columns", "projections", "tables"), OTEL_ONLY),
    "databases": "name = 'otel'",
    "functions": "origin = 'System'",
    "completions": f"context IN ({', '.join(map(quote_literal, COMPLETION_CONTEXTS))})",
}
"""Conditions on tables of `system` that hide other databases from a reader."""

SYSTEM_TABLES = {
    *("aggregate_function_combinators", "asynchronous_metrics", "build_options", "codecs"),
    *("collations", "contributors", "data_type_families", "documentation", "events", "formats"),
    *("keywords", "licenses", "metrics", "numbers", "numbers_mt", "one", "settings"),
    *("table_engines", "table_functions", "time_zones", "tokenizers", "unicode", "zeros"),
    *("zeros_mt", *SYSTEM_ROWS),
}
"""Tables of `system` without other users' queries, keys, files or hosts."""

TABLE_FILTERS = (
    "{"
    + ", ".join(f"'system.{name}': {quote_literal(rows)}" for name, rows in SYSTEM_ROWS.items())
    + "}"
)
"""The conditions as ClickHouse's setting `additional_table_filters`, which also applies to
subqueries, joins, views, SHOW and `information_schema`."""

READER_SHOWS = {
    "ShowTablesQuery": {
        *("full", "databases", "settings", "changed", "dictionaries", "temporary"),
        *("not_like", "case_insensitive_like"),
    },
    "ShowColumnsQuery": {"full", "extended", "not_like", "case_insensitive_like"},
    "ShowIndexesQuery": {"extended"},
}
"""Not MERGES, CLUSTERS or CACHES, whose rows no filter can hide."""

CHANGE_REFUSAL = (
    f"{READ_ONLY_REFUSAL}, so that no program forges or removes records of others. Send an admin "
    "key, which `ltrain key make admin` makes, or use an ltrain command as the store's owner."
)


def allows_setting(name: str) -> bool:
    """Return whether a reader may set a setting or a query parameter."""
    return name.startswith("param_") or bool(
        READER_SETTINGS.fullmatch(name) and not READER_REFUSED_SETTINGS.search(name)
    )


def denied(what: str, allowed: str) -> QueryFailed:
    """Return the error of a refused part of a statement."""
    return access_denied(f"Without an admin key, a query cannot use {what}. Allowed: {allowed}.")
