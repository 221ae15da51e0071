"""What one query, and all queries of one key, may take: by role, set in the environment.

ClickHouse enforces most of it. What it does not check in time (a client that does not read its
answer) the facade ends after the same number of seconds.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ltrain_collector.errors import QueryFailed
from ltrain_collector.grants import Grant, Role
from ltrain_instrument.settings import ADMIN_LIMITS, QUERY_LIMITS, Setting

CORES = os.cpu_count() or 1
READER_THREADS = max(1, CORES // 4)
"""Of one query of a key that only reads: ingest needs cores, whatever readers do."""
READER_LANES = max(2, CORES // 2)
"""Queries of such a key that run at a time, where the environment does not say: a client may ask
another while it reads the rows of one."""

NICE = 10
"""Of a reader's threads, where the process may set it: ingest gets nine times their CPU."""

WHOLE = 512 << 20
"""Bytes of an answer in a format that is made in one piece."""
WHOLE_SHARE = 8
"""The same for a reader: this part of its memory, as JSON writes six bytes for one."""

PARSER = {
    "max_parser_depth": 1000,
    "max_parser_backtracks": 100_000,
    "max_ast_depth": 1000,
    "max_ast_elements": 50_000,
    "max_expanded_ast_elements": 500_000,
    "max_subquery_depth": 100,
}
"""ClickHouse's defaults, but for backtracks: a million are ten seconds that nothing interrupts."""

CONSTRAINT = 452
"""ClickHouse's SETTING_CONSTRAINT_VIOLATION."""

TIMEOUT = 159
TOO_LARGE = 396
MEMORY_OF_ALL = "(total) memory limit exceeded"
"""What ClickHouse says when the memory of the server is used up, not that of one query."""
EXCEEDED = {TIMEOUT: "seconds", 158: "rows", 241: "memory"}
"""Which limit an error of ClickHouse is about."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one role; 0 is none."""

    setting: str
    """The environment variable that sets them."""
    seconds: int
    """From the start of a query to the last part of its answer."""
    memory: int
    """MiB."""
    rows: int
    """That a query reads."""
    disk: int
    """MiB of temporary files: sorts and groups that do not fit into memory."""
    text: int
    """KiB of SQL."""
    lanes: int
    """Queries of one key that run at a time."""
    waiting: int
    """Queries of one key that wait for a lane."""
    threads: int = 0
    """Of one query; 0 is ClickHouse's own choice."""
    strict: bool = False
    """Whether a query's own settings may only lower them."""

    @classmethod
    def read(
        cls, setting: Setting[dict[str, int]], threads: int = 0, strict: bool = False
    ) -> "Limits":
        """Return the limits that the environment sets; others keep their default."""
        default = {"lanes": READER_LANES, **setting.read_as(setting.default)}
        values = {**default, **setting.read()}
        return cls(setting.name, **values, threads=threads, strict=strict)

    @property
    def settings(self) -> dict[str, int]:
        """ClickHouse's settings that enforce the limits, by name."""
        wanted = {
            "max_execution_time": self.seconds,
            "max_memory_usage": self.memory << 20,
            "max_rows_to_read": self.rows,
            "max_temporary_data_on_disk_size_for_query": self.disk << 20,
            "max_threads": self.threads,
            "max_final_threads": self.threads,
            "max_threads_for_indexes": self.threads,
            "os_threads_nice_value_query": NICE if self.strict else 0,
        }
        return {name: value for name, value in wanted.items() if value}

    @property
    def whole(self) -> int:
        """Bytes of an answer that is made in one piece."""
        return min(WHOLE, (self.memory << 20) // WHOLE_SHARE or WHOLE)

    def check_text(self, sql: bytes) -> None:
        """Refuse SQL that is too long: parsing cannot be interrupted.

        Raises:
            QueryFailed: SYNTAX_ERROR, as ClickHouse does above `max_query_size`.
        """
        if self.text and len(sql) > self.text << 10:
            raise QueryFailed(
                f"Code: 62. DB::Exception: The SQL is longer than {self.text} KiB. Put long lists "
                f"into parameters, {{name:Type}}, or {self.raised('text')}. (SYNTAX_ERROR)",
                62,
            )

    @property
    def statements(self) -> list[str]:
        """SQL that sets them, to be run before a session's own SET."""
        return [f"SET {name} = {value}" for name, value in self._most.items() if value]

    @property
    def _most(self) -> dict[str, int]:
        return {**self.settings, **(self.parser if self.strict else {})}

    @property
    def parser(self) -> dict[str, int]:
        """ClickHouse's settings of how much SQL it reads."""
        return {**PARSER, "max_query_size": self.text << 10} if self.text else PARSER

    def lowered(self, settings: Mapping[str, str], streamed: bool) -> dict[str, str]:
        """Return a URL's settings, none above its limit.

        Args:
            streamed: whether the answer is made in parts; else its size is limited, too.
        """
        most = self._most if self.strict else {}
        own = {
            name: str(most[name]) if most.get(name) and not _within(value, most[name]) else value
            for name, value in settings.items()
        }
        size = own.get("max_result_bytes")
        if not streamed and (size is None or (self.strict and not _within(size, self.whole))):
            own["max_result_bytes"] = str(self.whole)
        return own

    def check_setting(self, name: str, value: object) -> None:
        """Refuse a setting of the SQL that would raise a limit.

        Raises:
            QueryFailed: SETTING_CONSTRAINT_VIOLATION.
        """
        most = {**self._most, "max_result_bytes": self.whole}
        if self.strict and most.get(name) and not _within(value, most[name]):
            raise QueryFailed(
                f"Code: {CONSTRAINT}. DB::Exception: The setting {name} = {value} is above the "
                f"limit of this key, {most[name]}. Leave it out, set it to less, or raise the "
                f"limit with {self.setting} in the environment of `ltrain up`. "
                "(SETTING_CONSTRAINT_VIOLATION)",
                CONSTRAINT,
            )

    def raised(self, limit: str) -> str:
        """Return how to raise a limit, as the end of a sentence."""
        value = int(getattr(self, limit))
        return (
            f"raise the limit with {self.setting}={limit}={2 * value} in the environment of "
            "`ltrain up`"
        )

    def explained(self, error: QueryFailed) -> QueryFailed:
        """Add to an error that a limit caused which one it was and how it is raised."""
        if MEMORY_OF_ALL in str(error):
            text = (
                f"{error} All queries together may take so much: try again, run fewer at a time, "
                f"or lower what each may take with {self.setting}=lanes=1,memory=512 in the "
                "environment of `ltrain up`."
            )
            return QueryFailed(text, error.code)
        limit = EXCEEDED.get(error.code)
        if error.code == TOO_LARGE and "temporary files" in str(error):
            limit = "disk"
        if limit is None or not getattr(self, limit) or "raise the limit" in str(error):
            return error
        text = f"{error} A query may take {limit}={getattr(self, limit)}: {self.raised(limit)}."
        return QueryFailed(text, error.code)

    def timeout(self) -> QueryFailed:
        """Return the error of a query whose client took too long to read its answer."""
        return QueryFailed(
            f"Code: {TIMEOUT}. DB::Exception: The query and the reading of its answer took more "
            f"than {self.seconds} s; {self.raised('seconds')}. (TIMEOUT_EXCEEDED)",
            TIMEOUT,
        )


def _within(value: object, limit: int) -> bool:
    try:
        number = float(str(value))
    except ValueError:
        return False
    return 0 < number <= limit


@dataclass(frozen=True, slots=True)
class Roles:
    """The limits of all roles."""

    reader: Limits
    """Of a key that only reads."""
    admin: Limits
    """Of a key of role admin, and of a store without keys."""

    @classmethod
    def read(cls) -> "Roles":
        """Return what the environment sets.

        Raises:
            BadSetting: when it cannot be read.
        """
        return cls(
            Limits.read(QUERY_LIMITS, READER_THREADS, strict=True), Limits.read(ADMIN_LIMITS)
        )

    def of(self, grant: Grant | None) -> Limits:
        """Return the limits of a request."""
        return self.reader if only_reads(grant) else self.admin


def only_reads(grant: Grant | None) -> bool:
    """Return whether a request's key is of role `query`."""
    return grant is not None and grant.role is Role.QUERY
