"""The policy of requests without a key: they read the store, and nothing outside it.

* They cannot change the store: readers trust rows by the sender that ingest recorded, and a
  statement could write any sender or remove rows.
* They cannot read the machine's files, call other hosts or run programs: that would happen with the
  rights of the store's owner.

So the syntax tree of every statement is checked.
"""

import re
from collections.abc import Mapping

from ltrain_collector.errors import ACCESS_DENIED, KEYLESS_REFUSAL, QueryFailed
from ltrain_collector.query.access import FORBIDDEN_FUNCTIONS, TableFunctions
from ltrain_collector.query.syntax import Node, ParsedStatement, parse_statement, walk_nodes
from ltrain_collector.store import Engine

TABLE_FUNCTIONS = re.compile(
    r"generate_?series|null|numbers(?:_mt)?|primes|(?:sqlstandard)?values|zeros(?:_mt)?|"
    r"view\w*|merge|input|format|generaterandom|loop|dictionary|mergetree\w+|timeseries\w*"
)
"""Table functions in lower case that read only this store or their arguments."""

INSIDE_FUNCTIONS = re.compile(
    r"(?:dict|joinGet|sleep|logTrace|assignCentroid|generateSerialID|getClientHTTPHeader|"
    r"getServerSetting|getMergeTreeSetting|currentRequestURL)\w*",
    re.IGNORECASE,
)
"""Functions that query keys cannot call, but that do not leave the store."""

OUTSIDE_SETTINGS = re.compile(
    r"(?:\w+_)?(?:schema|path|file|template|templates|url|disk|disks|storage|udf)(?:_\w+)?|"
    r"\w*named_col\w*|cluster_for\w+|parallel_replicas_\w+|additional_\w+|"
    r"allow_introspection_functions|dialect"
)
"""Settings that name a file, a host or a disk, contain SQL, or change the SQL dialect."""

SESSION_STATEMENTS = ("SetQuery", "UseQuery", "CheckTableQuery")
"""Further allowed statements: those about the request's session, and CHECK TABLE."""

SHOW_STATEMENT = re.compile(r"(?:SHOW|EXISTS)\b")

DESCRIBE_STATEMENT = re.compile(r"DESCRIBE TABLE (.*)", re.DOTALL)


class KeylessPolicy:
    """Checks the statements of requests without a key."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._functions = TableFunctions(engine)

    def check(self, parsed: ParsedStatement, settings: Mapping[str, str]) -> None:
        """Check that a statement only reads, and only the store.

        Raises:
            QueryFailed: ACCESS_DENIED, with what needs a key.
        """
        if not (parsed.is_read or parsed.kind in SESSION_STATEMENTS):
            raise change_refused()
        _check_settings(settings)
        if parsed.tree is None:
            self._check_text(parsed.text)
        for _, node in walk_nodes(parsed.tree):
            self._check_node(node)

    def _check_node(self, node: Node) -> None:
        if node.get("type") == "Function":
            self._check_function(str(node.get("name", "")), node)
        elif node.get("type") == "SetQuery":
            _check_settings({change["name"]: "" for change in node.get("changes", ())})
        if "func_name" in node:  # of APPLY
            self._check_function(str(node["func_name"]), node)

    def _check_function(self, name: str, node: Node) -> None:
        """Check a call; an argument can be a function's name, as in arrayMap(lower, names)."""
        passed = (node.get("arguments") or {}).get("children", ())
        for called in (name, *(str(one.get("name")) for one in passed if _is_identifier(one))):
            if _is_outside_function(called):
                raise _outside_error(f"The function '{called}'")
        lower = name.lower()
        if lower in self._functions and not TABLE_FUNCTIONS.fullmatch(lower):
            raise _outside_error(f"The table function '{name}'")

    def _check_text(self, text: str) -> None:
        """Check a statement for which the parser returns one line instead of a tree."""
        if described := DESCRIBE_STATEMENT.fullmatch(text):
            self._check_as_query(f"SELECT * FROM {described[1]}")
        elif not SHOW_STATEMENT.match(text):
            raise _outside_error("This statement")

    def _check_as_query(self, sql: str) -> None:
        try:
            parsed = parse_statement(self._engine, sql)
        except QueryFailed as error:
            raise _outside_error("What this statement names") from error
        if parsed.tree is None:
            raise _outside_error("What this statement names")
        for _, node in walk_nodes(parsed.tree):
            self._check_node(node)


def change_refused() -> QueryFailed:
    """Return the error of a statement that would change the store."""
    return QueryFailed(
        f"Code: {ACCESS_DENIED}. DB::Exception: {KEYLESS_REFUSAL}, so that no program forges or "
        "removes records of others. Send an admin key, which `ltrain key make admin` makes, or "
        "use an ltrain command as the store's owner. (ACCESS_DENIED)",
        ACCESS_DENIED,
    )


def _check_settings(settings: Mapping[str, str]) -> None:
    for name in settings:
        if not name.startswith("param_") and OUTSIDE_SETTINGS.fullmatch(name):
            raise _outside_error(f"The setting '{name}'")


def _is_outside_function(function: str) -> bool:
    return bool(FORBIDDEN_FUNCTIONS.fullmatch(function)) and not INSIDE_FUNCTIONS.fullmatch(
        function
    )


def _is_identifier(argument: Node) -> bool:
    return argument.get("type") == "Identifier"


def _outside_error(what: str) -> QueryFailed:
    return QueryFailed(
        f"Code: {ACCESS_DENIED}. DB::Exception: {what} can reach files, hosts or programs outside "
        "the store, which needs an admin key: `ltrain key make admin`. (ACCESS_DENIED)",
        ACCESS_DENIED,
    )
