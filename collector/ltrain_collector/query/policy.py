"""The policy table of the ClickHouse port: what each role may use, by kind.

| | query key | no key | admin key |
|---|---|---|---|
| statements | that read, and SET | that read, SET, USE and CHECK TABLE | all |
| functions | that stay within the database `otel` | that stay within the store | all |
| settings | a list | all but those that name files or hosts, or contain SQL | all |
| tables | `otel`, and a list of `system` | all | all |

ClickHouse's `readonly` forbids writes, but still allows reading the machine's files and other hosts
by table functions, functions and settings that name files. Readers also trust rows by the sender
that ingest recorded, so no statement without an admin key may write or remove rows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ltrain_collector.access import Grant
from ltrain_collector.errors import ACCESS_DENIED, KEYLESS_REFUSAL, QueryFailed
from ltrain_collector.query.limits import only_reads
from ltrain_collector.store import quote_literal

DATABASES = ("otel", "system", "information_schema")
"""The databases of query keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The statements, functions, settings and tables of one role."""

    statements: tuple[str, ...]
    """Types of statements that are allowed beside those that only read."""
    shows: Mapping[str, set[str]]
    """Allowed SHOW statements and their options, for a confined role."""
    functions: re.Pattern[str]
    """Refused functions."""
    table_functions: frozenset[str]
    """Allowed table functions, in lower case."""
    shared_names: re.Pattern[str]
    """Further table functions, in lower case, whose names calls may have."""
    settings: re.Pattern[str]
    """Allowed settings."""
    refused_settings: re.Pattern[str]
    """Settings that are refused although `settings` matches them."""
    tables: set[str]
    """Allowed tables of `system`, for a confined role."""
    confined: bool
    """Whether the role reads the database `otel` only, and of other databases only `tables`."""
    refusal: str
    """The error: `{what}` is refused, or `{What}` at the start; `{allowed}` is allowed."""
    change_refusal: str
    """The error of a statement that would change the store; '' for `refusal`."""
    insert_refusal: str
    """The error of an insert."""

    def denied(self, what: str, allowed: str) -> QueryFailed:
        """Return the error of a refused part of a statement."""
        capital = what[0].upper() + what[1:]
        return access_denied(self.refusal.format(what=what, What=capital, allowed=allowed))

    def changes_denied(self) -> QueryFailed:
        """Return the error of a statement that does not only read."""
        if self.change_refusal:
            return access_denied(self.change_refusal)
        return self.denied("this statement", "SELECT, SHOW, DESCRIBE, EXISTS and EXPLAIN")

    def allows_table_function(self, name: str) -> bool:
        """Return whether a call may have the name of a table function, in lower case."""
        return name in self.table_functions or bool(self.shared_names.fullmatch(name))

    def allows_setting(self, name: str) -> bool:
        return name.startswith("param_") or bool(
            self.settings.fullmatch(name) and not self.refused_settings.search(name)
        )


def access_denied(sentence: str) -> QueryFailed:
    """Return the error ACCESS_DENIED with a sentence."""
    text = f"Code: {ACCESS_DENIED}. DB::Exception: {sentence} (ACCESS_DENIED)"
    return QueryFailed(text, ACCESS_DENIED)


OUTSIDE_FUNCTIONS = (
    r"file|catboostEvaluate|evalMLMethod|reverseDNSQuery|showCertificate|addressTo\w+|trap|"
    r"zookeeper\w*|hasColumnInTable|"
    r"ai_?(?:classify|embed|extract|filter|generate|redact|similarity|translate)\w*"
)
"""Functions that read files, or call other hosts or a language model."""

STORE_FUNCTIONS = (
    r"logTrace|joinGet\w*|assignCentroid|generateSerialID|dict(?:Get|Has|IsIn)\w*|"
    r"getClientHTTPHeader|getServerSetting|getMergeTreeSetting|sleep\w*|currentRequestURL"
)
"""Functions that do not leave the store, but read other databases or delay a query."""

VALUE_TABLE_FUNCTIONS = frozenset(
    {
        *("generate_series", "generateseries", "null", "numbers", "numbers_mt", "primes"),
        *("values", "sqlstandardvalues", "zeros", "zeros_mt"),
    }
)
"""Table functions that read only their arguments."""

STORE_TABLE_FUNCTIONS = (
    r"view\w*|merge|input|format|generaterandom|loop|dictionary|mergetree\w+|timeseries\w*"
)
"""Further table functions that read only this store or their arguments."""

READER_SETTINGS = (
    r"(?:max|min|cancel|output_format|date_time|join|group_by|optimize|distinct|sort|timeout|read|"
    r"result|transform|allow_experimental|aggregate|http|use|prefer|enable|merge_tree|query_plan|"
    r"format_csv|input_format|connect|receive|send|parallel|local|cast|session_timezone|extremes|"
    r"final|limit|offset|log_comment|log_queries|totals|union|any_join|count_distinct|compile|"
    r"empty|interactive|low_cardinality|preferred|short_circuit|wait_end_of_query|readonly)"
    r"(?:_\w+)?"
)
"""Limits, and settings of joins, sorts and output."""

READER_REFUSED_SETTINGS = (
    r"schema|path|file|template|url|disk|storage|named_col|introspect|udf|memory|query_cache"
)
"""Parts of the names of settings that name a file or a host, enable unsafe functions, raise the
reader's memory, or return cached results of another key."""

OUTSIDE_SETTINGS = (
    r"(?:\w+_)?(?:schema|path|file|template|templates|url|disk|disks|storage|udf)(?:_\w+)?|"
    r"\w*named_col\w*|cluster_for\w+|parallel_replicas_\w+|additional_\w+|"
    r"allow_introspection_functions|dialect"
)
"""Settings that name a file, a host or a disk, contain SQL, or change the SQL dialect."""

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

READER = Policy(
    statements=("SetQuery",),
    shows=READER_SHOWS,
    functions=re.compile(f"{OUTSIDE_FUNCTIONS}|{STORE_FUNCTIONS}", re.IGNORECASE),
    table_functions=VALUE_TABLE_FUNCTIONS,
    shared_names=re.compile("format"),  # also a harmless function
    settings=re.compile(READER_SETTINGS),
    refused_settings=re.compile(READER_REFUSED_SETTINGS),
    tables=SYSTEM_TABLES,
    confined=True,
    refusal="A key of role 'query' cannot use {what}. Allowed: {allowed}.",
    change_refusal="",
    insert_refusal="A key of role 'query' cannot insert; use an admin key, which `ltrain key make "
    "admin` makes.",
)
"""The policy of query keys."""

KEYLESS_CHANGE = (
    f"{KEYLESS_REFUSAL}, so that no program forges or removes records of others. Send an admin "
    "key, which `ltrain key make admin` makes, or use an ltrain command as the store's owner."
)

KEYLESS = Policy(
    statements=("SetQuery", "UseQuery", "CheckTableQuery"),
    shows={},
    functions=re.compile(OUTSIDE_FUNCTIONS, re.IGNORECASE),
    table_functions=VALUE_TABLE_FUNCTIONS,
    shared_names=re.compile(STORE_TABLE_FUNCTIONS),
    settings=re.compile(".*", re.DOTALL),
    refused_settings=re.compile(rf"\A(?:{OUTSIDE_SETTINGS})\Z"),
    tables=set(),
    confined=False,
    refusal="{What} can reach files, hosts or programs outside the store, which needs an admin "
    "key: `ltrain key make admin`.",
    change_refusal=KEYLESS_CHANGE,
    insert_refusal=KEYLESS_CHANGE,
)
"""The policy of requests without a key."""


def policy_for(grant: Grant | None) -> Policy | None:
    """Return the policy of a request; None for an admin, who may use everything."""
    if grant is None:
        return KEYLESS
    return READER if only_reads(grant) else None
