"""What a request without a key may do: read the store, and nothing outside it.

* It changes nothing: readers trust rows by the sender that ingest recorded, and a statement could
  write any sender, or remove what others recorded.
* It does not read the machine's files, call other hosts or run programs: it would do so with the
  rights of the store's owner.

So the tree of every statement is checked against what reads, and stays within the store.
"""

import re
from collections.abc import Mapping

from ltrain_collector.engine import Engine
from ltrain_collector.errors import KEYLESS, QueryFailed
from ltrain_collector.query.access import DENIED, FUNCTIONS, TableFunctions
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

SETTINGS = re.compile(
    r"(?:\w+_)?(?:schema|path|file|template|templates|url|disk|disks|storage|udf)(?:_\w+)?|"
    r"\w*named_col\w*|cluster_for\w+|parallel_replicas_\w+|additional_\w+|"
    r"allow_introspection_functions|dialect"
)
"""Settings that name a file, a host or a disk, hold SQL of their own, or let it mean another."""

OTHERS = ("SetQuery", "UseQuery", "CheckTableQuery")
"""Statements beside those that read: about the request's own session, or comparing checksums."""

SHOWING = re.compile(r"(?:SHOW|EXISTS)\b")

DESCRIBING = re.compile(r"DESCRIBE TABLE (.*)", re.DOTALL)


class Outside:
    """Decides for requests without a key."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._functions = TableFunctions(engine)

    def check(self, parsed: Parsed, settings: Mapping[str, str]) -> None:
        """Pass a statement that reads, and stays within the store.

        Raises:
            QueryFailed: ACCESS_DENIED, with what needs a key.
        """
        if not (parsed.reads or parsed.kind in OTHERS):
            raise changes()
        _check_settings(settings)
        if parsed.tree is None:
            self._check_text(parsed.text)
        for _, node in nodes(parsed.tree):
            self._check_node(node)

    def _check_node(self, node: Node) -> None:
        if node.get("type") == "Function":
            self._check_function(str(node.get("name", "")), node)
        elif node.get("type") == "SetQuery":
            _check_settings({change["name"]: "" for change in node.get("changes", ())})
        if "func_name" in node:  # of APPLY
            self._check_function(str(node["func_name"]), node)

    def _check_function(self, name: str, node: Node) -> None:
        """Pass a call; an argument may be a function's name, as in arrayMap(lower, names)."""
        passed = (node.get("arguments") or {}).get("children", ())
        for called in (name, *(str(one.get("name")) for one in passed if _names(one))):
            if _leaves(called):
                raise _leaving(f"The function '{called}'")
        lower = name.lower()
        if lower in self._functions and not TABLE_FUNCTIONS.fullmatch(lower):
            raise _leaving(f"The table function '{name}'")

    def _check_text(self, text: str) -> None:
        """Pass a statement of which the parser gives one line instead of a tree."""
        if described := DESCRIBING.fullmatch(text):
            self._check_as_query(f"SELECT * FROM {described[1]}")
        elif not SHOWING.match(text):
            raise _leaving("This statement")

    def _check_as_query(self, sql: str) -> None:
        try:
            parsed = parse(self._engine, sql)
        except QueryFailed as error:
            raise _leaving("What this statement names") from error
        if parsed.tree is None:
            raise _leaving("What this statement names")
        for _, node in nodes(parsed.tree):
            self._check_node(node)


def changes() -> QueryFailed:
    """Return the refusal of what would change the store."""
    return QueryFailed(
        f"Code: {DENIED}. DB::Exception: {KEYLESS}, so that no program forges or removes what "
        "others recorded: show an admin key, which `ltrain key make admin` makes, or use a command "
        "of ltrain as the store's owner. (ACCESS_DENIED)",
        DENIED,
    )


def _check_settings(settings: Mapping[str, str]) -> None:
    for name in settings:
        if not name.startswith("param_") and SETTINGS.fullmatch(name):
            raise _leaving(f"The setting '{name}'")


def _leaves(function: str) -> bool:
    return bool(FUNCTIONS.fullmatch(function)) and not HARMLESS.fullmatch(function)


def _names(argument: Node) -> bool:
    return argument.get("type") == "Identifier"


def _leaving(what: str) -> QueryFailed:
    return QueryFailed(
        f"Code: {DENIED}. DB::Exception: {what} reaches files, hosts or programs outside the "
        "store, which needs an admin key: `ltrain key make admin`. (ACCESS_DENIED)",
        DENIED,
    )
