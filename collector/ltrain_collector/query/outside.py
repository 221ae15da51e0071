"""What a statement reaches outside the store, which only an admin key allows.

Who asks a store without keys may read and change it, but must not make it read the machine's files,
call other hosts or run programs: a page or an agent would do so with the rights of the store's
owner. So the tree of every statement is checked against what stays within the store.
"""

import re
from collections.abc import Mapping

from ltrain_collector.engine import Engine
from ltrain_collector.errors import QueryFailed
from ltrain_collector.query.access import DENIED, FUNCTIONS, OUTSIDE
from ltrain_collector.query.syntax import Node, Parsed, nodes, parse

TABLE_FUNCTIONS = re.compile(
    r"generate_?series|null|numbers(?:_mt)?|primes|(?:sqlstandard)?values|zeros(?:_mt)?|"
    r"view\w*|merge|input|format|generaterandom|loop|dictionary|mergetree\w+|timeseries\w*"
)
"""Table functions, in lower case, that read this store, their arguments, or nothing."""

HARMLESS = re.compile(
    r"(?:dict|joinGet|sleep|logTrace|assignCentroid|generateSerialID|getClientHTTPHeader|"
    r"getServerSetting|getMergeTreeSetting|currentRequestURL)\w*",
    re.IGNORECASE,
)
"""Functions that a key which only reads may not call, and that stay within the store."""

ENGINES = re.compile(
    r"(?:Replacing|Summing|Aggregating|Coalescing|Collapsing|VersionedCollapsing|Graphite)?"
    r"MergeTree|(?:Tiny|Stripe)?Log|Memory|Null|Set|Join|Buffer|Merge|View|MaterializedView|Alias|"
    r"Dictionary|GenerateRandom|TimeSeries|WindowView"
)
DATABASE_ENGINES = re.compile(r"Atomic|Ordinary|Memory")
BACKUPS = re.compile(r"File")
"""Where BACKUP may write to: the engine keeps `File` below a folder of the store."""

BY_KIND = {"TABLE_ENGINE": ENGINES, "DATABASE_ENGINE": DATABASE_ENGINES, "BACKUP_NAME": BACKUPS}
"""Functions that a tree names for another purpose than a call."""

SETTINGS = re.compile(
    r"(?:\w+_)?(?:schema|path|file|template|templates|url|disk|disks|storage|udf)(?:_\w+)?|"
    r"\w*named_col\w*|cluster_for\w+|parallel_replicas_\w+|additional_\w+|"
    r"allow_introspection_functions"
)
"""Settings that name a file, a host or a disk, or hold SQL of their own."""

SHOWING = re.compile(r"(?:SHOW|EXISTS|UNDROP|CHECK)\b")
DESCRIBING = re.compile(r"DESCRIBE TABLE (.*)", re.DOTALL)
INSERTING = re.compile(r"INSERT INTO (?!FUNCTION\b|TABLE FUNCTION\b)")
VALUES = re.compile(r"\bVALUES\s*(?=\()", re.IGNORECASE)
NAMED = re.compile(r"(\w+) = ")


class Outside:
    """Decides for requests without a key, and knows the engine's table functions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._outside: frozenset[str] = frozenset()

    def check(self, sql: str, parsed: Parsed, settings: Mapping[str, str]) -> None:
        """Pass a statement that stays within the store.

        Raises:
            QueryFailed: ACCESS_DENIED, with what reaches outside.
        """
        self.check_settings(settings)
        if parsed.tree is None:
            self._check_text(sql, parsed.text)
        for key, node in nodes(parsed.tree):
            self._check_node(key, node)

    def check_settings(self, settings: Mapping[str, str]) -> None:
        """Pass the settings of a request.

        Raises:
            QueryFailed: ACCESS_DENIED, when one names a file, a host or a disk.
        """
        for name in settings:
            if not name.startswith("param_") and SETTINGS.fullmatch(name):
                raise _denied(f"The setting '{name}'")

    def _check_node(self, key: str, node: Node) -> None:
        kind, name = node.get("type"), str(node.get("name", ""))
        if kind == "Function" and (key == "engine" or node.get("kind") in BY_KIND):
            allowed = BY_KIND.get(str(node.get("kind")), ENGINES)
            if not allowed.fullmatch(name):
                raise _denied(f"'{name}'")
        elif kind == "Function":
            self._check_function(name, node)
        elif kind == "SetQuery":
            self.check_settings({change["name"]: "" for change in node.get("changes", ())})
        elif kind == "CreateQuery" and (node.get("is_dictionary") or node.get("attach_from_path")):
            raise _denied("A dictionary's source, or a table attached from a folder,")
        elif kind == "AlterCommand" and "FETCH" in str(node.get("command_type")):
            raise _denied("FETCH")
        if node.get("cluster"):
            raise _denied("ON CLUSTER")
        if "func_name" in node:  # of APPLY
            self._check_function(str(node["func_name"]), node)

    def _check_function(self, name: str, node: Node) -> None:
        """Pass a call; an argument may be a function's name, as in arrayMap(lower, names)."""
        passed = (node.get("arguments") or {}).get("children", ())
        for called in (name, *(str(one.get("name")) for one in passed if _names(one))):
            if _leaves(called):
                raise _denied(f"The function '{called}'")
        lower = name.lower()
        if lower in self._functions() and not TABLE_FUNCTIONS.fullmatch(lower):
            raise _denied(f"The table function '{name}'")

    def _check_text(self, sql: str, text: str) -> None:
        """Pass a statement of which the parser gives one line instead of a tree."""
        if described := DESCRIBING.fullmatch(text):
            self._check_as_query(f"SELECT * FROM {described[1]}")
        elif INSERTING.match(text):
            self.check_settings(dict.fromkeys(NAMED.findall(text), ""))
            self._check_values(sql)
        elif not SHOWING.match(text):
            raise _denied("This statement")

    def _check_values(self, sql: str) -> None:
        """Pass the expressions of INSERT … VALUES; data that name no function pass unread."""
        if not any(map(_leaves, set(re.findall(r"\w+", sql)))):
            return
        found = VALUES.search(sql)
        if found is not None:
            self._check_as_query(f"SELECT {sql[found.end() :]}")

    def _check_as_query(self, sql: str) -> None:
        try:
            parsed = parse(self._engine, sql)
        except QueryFailed as error:
            raise _denied("What this statement names") from error
        if parsed.tree is None:
            raise _denied("What this statement names")
        for key, node in nodes(parsed.tree):
            self._check_node(key, node)

    def _functions(self) -> frozenset[str]:
        if not self._outside:
            found = b"".join(self._engine.formatted(OUTSIDE, "TSV", {})).decode()
            self._outside = frozenset(found.split())
        return self._outside


def _leaves(function: str) -> bool:
    return bool(FUNCTIONS.fullmatch(function)) and not HARMLESS.fullmatch(function)


def _names(argument: Node) -> bool:
    return argument.get("type") == "Identifier"


def _denied(what: str) -> QueryFailed:
    return QueryFailed(
        f"Code: {DENIED}. DB::Exception: {what} reaches files, hosts or programs outside the "
        "store, which needs an admin key: `ltrain key make admin`. (ACCESS_DENIED)",
        DENIED,
    )
