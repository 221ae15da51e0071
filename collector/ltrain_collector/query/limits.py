"""Limits of one query and of all queries of one key, by role, from the environment.

ClickHouse enforces most of them. The HTTP interface ends what ClickHouse does not check in time,
such as a response that its client does not read, after the same number of seconds.
"""

import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from ltrain_collector.access import Grant, Role
from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import TOTAL_MEMORY_MESSAGE
from ltrain_instrument.settings import ADMIN_LIMITS, QUERY_LIMITS, Setting

CORES = os.cpu_count() or 1
READER_THREADS = max(1, CORES // 4)
"""Threads of one query of a query key: the other cores are for ingest."""
READER_PARALLEL = max(2, CORES // 2)
"""Default number of queries of a query key that run in parallel: a client can send one while it
reads the rows of another."""

NICE = 10
"""Nice value of a reader's threads, if the process can set it: ingest gets nine times their CPU."""


@cache
def can_set_nice() -> bool:
    """Return whether a thread of this process may raise its nice value and lower it again.

    ClickHouse lowers it to 0, also in a process that began with another value, and ends the process
    if it cannot, as in a user namespace, whose root has the capability and is still refused.
    """

    def try_it() -> bool:
        own = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, own):
            return False
        try:
            os.setpriority(os.PRIO_PROCESS, own, NICE)
            os.setpriority(os.PRIO_PROCESS, own, 0)
        except PermissionError:
            return False
        return True

    with ThreadPoolExecutor(1) as thread:  # the thread ends with the value that it has
        return thread.submit(try_it).result()


MAX_WHOLE_BYTES = 512 << 20
"""Bytes of a result in a format that cannot be streamed."""
WHOLE_MEMORY_DIVISOR = 8
"""A reader's result has at most this part of its memory limit: JSON writes six bytes for one."""

PARSER_LIMITS = {
    "max_parser_depth": 1000,
    "max_parser_backtracks": 100_000,
    "max_ast_depth": 1000,
    "max_ast_elements": 50_000,
    "max_expanded_ast_elements": 500_000,
    "max_subquery_depth": 100,
}
"""ClickHouse's defaults, with fewer backtracks: a million take ten seconds without interruption."""

SETTING_CONSTRAINT = 452
"""ClickHouse's SETTING_CONSTRAINT_VIOLATION."""

TIMEOUT = 159
TOO_LARGE = 396
CANCELLED = 394
LIMIT_OF_CODE = {TIMEOUT: "seconds", 158: "rows", 241: "memory"}
"""The limit that an error code of ClickHouse reports."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one role; 0 means no limit."""

    setting: str
    """The environment variable that sets them."""
    seconds: int
    """Time from the start of a query to the last part of its response."""
    memory: int
    """MiB of memory of a query."""
    rows: int
    """Rows that a query reads."""
    disk: int
    """MiB of temporary files for sorts and groups that do not fit into memory."""
    statement: int
    """KiB of SQL of a statement."""
    parallel: int
    """Queries of one key that run at the same time."""
    queued: int
    """Queries of one key that wait for a slot."""
    threads: int = 0
    """Threads of one query; 0: ClickHouse decides."""
    strict: bool = False
    """Whether a query's own settings can only lower the limits."""

    @classmethod
    def from_environment(
        cls, setting: Setting[dict[str, int]], threads: int = 0, strict: bool = False
    ) -> "Limits":
        """Return the limits from the environment variable and, for the others, their defaults."""
        default = {"parallel": READER_PARALLEL, **setting.read_as(setting.default)}
        values = {**default, **setting.read()}
        return cls(setting.name, **values, threads=threads, strict=strict)

    @property
    def settings(self) -> dict[str, int]:
        """ClickHouse's settings that enforce the limits, by name."""
        values = {
            "max_execution_time": self.seconds,
            "max_memory_usage": self.memory << 20,
            "max_rows_to_read": self.rows,
            "max_temporary_data_on_disk_size_for_query": self.disk << 20,
            "max_threads": self.threads,
            "max_final_threads": self.threads,
            "max_threads_for_indexes": self.threads,
            "os_threads_nice_value_query": NICE if self.strict and can_set_nice() else 0,
        }
        return {name: value for name, value in values.items() if value}

    @property
    def max_whole_bytes(self) -> int:
        """Bytes of a result that cannot be streamed."""
        return min(MAX_WHOLE_BYTES, (self.memory << 20) // WHOLE_MEMORY_DIVISOR or MAX_WHOLE_BYTES)

    def check_length(self, sql: bytes) -> None:
        """Check the length of a statement: parsing cannot be interrupted."""
        if self.statement and len(sql) > self.statement << 10:
            raise QueryFailed(
                f"Code: 62. DB::Exception: The SQL is longer than {self.statement} KiB. Put long "
                f"lists into parameters, {{name:Type}}, or {self.how_to_raise('statement')}. "
                "(SYNTAX_ERROR)",
                62,
            )

    @property
    def set_statements(self) -> list[str]:
        """The SET statements that a session runs before its own."""
        return [f"SET {name} = {value}" for name, value in self._enforced.items() if value]

    @property
    def _enforced(self) -> dict[str, int]:
        return {**self.settings, **(self.parser if self.strict else {})}

    @property
    def parser(self) -> dict[str, int]:
        """ClickHouse's settings that limit its parser."""
        return (
            {**PARSER_LIMITS, "max_query_size": self.statement << 10}
            if self.statement
            else PARSER_LIMITS
        )

    def lower_settings(self, settings: Mapping[str, str], streamed: bool) -> dict[str, str]:
        """Return the settings of a URL, with those above a limit lowered to it.

        Args:
            streamed: whether the result is streamed; otherwise its size is limited as well.
        """
        limits = self._enforced if self.strict else {}
        lowered = {
            name: str(limits[name])
            if limits.get(name) and not _within(value, limits[name])
            else value
            for name, value in settings.items()
        }
        size = lowered.get("max_result_bytes")
        if not streamed and (
            size is None or (self.strict and not _within(size, self.max_whole_bytes))
        ):
            lowered["max_result_bytes"] = str(self.max_whole_bytes)
        return lowered

    def check_setting(self, name: str, value: object) -> None:
        """Check that a setting in the SQL does not raise a limit."""
        limits = {**self._enforced, "max_result_bytes": self.max_whole_bytes}
        if self.strict and limits.get(name) and not _within(value, limits[name]):
            raise QueryFailed(
                f"Code: {SETTING_CONSTRAINT}. DB::Exception: The setting {name} = {value} is above "
                f"the limit of this key, {limits[name]}. Remove it, lower it, or raise the limit "
                f"with {self.setting} in the environment of `ltrain up`. "
                "(SETTING_CONSTRAINT_VIOLATION)",
                SETTING_CONSTRAINT,
            )

    def how_to_raise(self, limit: str) -> str:
        """Return how to raise a limit, as the end of a sentence."""
        value = int(getattr(self, limit))
        return (
            f"raise the limit with {self.setting}={limit}={2 * value} in the environment of "
            "`ltrain up`"
        )

    def explain(self, error: QueryFailed) -> QueryFailed:
        """Add to an error of ClickHouse which limit was exceeded and how to raise it."""
        if TOTAL_MEMORY_MESSAGE in str(error) or (self.strict and error.code == CANCELLED):
            why = "Ingest needed its memory. " if error.code == CANCELLED else ""
            text = (
                f"{error} {why}This is the limit of all queries together: try again, run fewer at "
                f"a time, or lower the limits of each with {self.setting}=parallel=1,memory=512 in "
                "the environment of `ltrain up`."
            )
            return QueryFailed(text, error.code)
        limit = LIMIT_OF_CODE.get(error.code)
        if error.code == TOO_LARGE and "temporary files" in str(error):
            limit = "disk"
        if limit is None or not getattr(self, limit) or "raise the limit" in str(error):
            return error
        text = (
            f"{error} A query may take {limit}={getattr(self, limit)}: {self.how_to_raise(limit)}."
        )
        return QueryFailed(text, error.code)

    def timeout_error(self) -> QueryFailed:
        """Return the error of a query whose client read its response too slowly."""
        return QueryFailed(
            f"Code: {TIMEOUT}. DB::Exception: Running the query and reading its response took "
            f"more than {self.seconds} s; {self.how_to_raise('seconds')}. (TIMEOUT_EXCEEDED)",
            TIMEOUT,
        )


def _within(value: object, limit: int) -> bool:
    try:
        number = float(str(value))
    except ValueError:
        return False
    return 0 < number <= limit


@dataclass(frozen=True, slots=True)
class RoleLimits:
    """The limits of all roles."""

    reader: Limits
    """Limits of keys of role query, and of requests without a key."""
    admin: Limits
    """Limits of keys of role admin."""

    @classmethod
    def from_environment(cls) -> "RoleLimits":
        """Return the limits from the environment.

        Raises:
            BadSetting: a variable is invalid.
        """
        return cls(
            Limits.from_environment(QUERY_LIMITS, READER_THREADS, strict=True),
            Limits.from_environment(ADMIN_LIMITS),
        )

    def for_grant(self, grant: Grant | None) -> Limits:
        """Return the limits of a request."""
        return self.reader if only_reads(grant) else self.admin


def only_reads(grant: Grant | None) -> bool:
    """Return whether a request has no admin key: it has a query key, or none."""
    return grant is None or grant.role is Role.QUERY
