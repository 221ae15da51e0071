"""Run one statement in one thread and yield its response in parts."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ltrain_collector.access import Grant
from ltrain_collector.errors import QueryFailed
from ltrain_collector.query.access import (
    ReaderDatabase,
    StatementCheck,
    TableFunctions,
    without_hints,
)
from ltrain_collector.query.limits import TOO_LARGE, Limits, RoleLimits, only_reads
from ltrain_collector.query.policy import CHANGE_REFUSAL, TABLE_FILTERS, access_denied
from ltrain_collector.query.response import is_revision_query, revision_block, zero_revision_query
from ltrain_collector.query.sessions import Session, Sessions
from ltrain_collector.query.statement import Statement
from ltrain_collector.query.syntax import ParsedStatement, parse_statement, too_deep_error
from ltrain_collector.store import (
    READING_STATEMENT,
    Engine,
    is_streamable,
    query_errors,
    quote_literal,
    setup_statements,
    stream_result,
)

CHUNK_BYTES = 1 << 18
INSERT_CHUNK_BYTES = 8 << 20
"""Bytes of an insert that are passed to the engine at a time."""

READ_ONLY = QueryFailed(
    "Code: 164. DB::Exception: Cannot execute query in readonly mode: a GET only reads; use POST. "
    "(READONLY)",
    164,
)
ARROW_WRITERS = {"ArrowStream": pa.ipc.new_stream, "Arrow": pa.ipc.new_file}
"""Formats that are streamed from the engine's Arrow batches, and their writers."""


@dataclass(frozen=True, slots=True)
class QueryRunner:
    engine: Engine
    sessions: Sessions
    table_functions: TableFunctions
    reader_database: ReaderDatabase
    roles: RoleLimits

    def run(
        self, statement: Statement, session: Session | None, grant: Grant | None, tag: str
    ) -> Generator[Any, None, None]:
        """Yield the response in parts: the summary of an insert, or bytes.

        Args:
            tag: start of the query's `log_comment`, by which `kill` finds it.
        """
        if statement.rows is not None:
            if only_reads(grant):
                raise access_denied(CHANGE_REFUSAL)
            yield self._insert(statement, session, tag)
            return
        try:
            yield from self._limited(statement, session, grant, tag)
        except RecursionError:
            raise too_deep_error() from None
        except QueryFailed as error:
            explained = self.roles.for_grant(grant).explain(error)
            raise (without_hints(explained) if only_reads(grant) else explained) from error

    def _limited(
        self, statement: Statement, session: Session | None, grant: Grant | None, tag: str
    ) -> Iterator[bytes]:
        """Check a statement and run it under the limits of its role."""
        limits = self.roles.for_grant(grant)
        parser = limits.parser if limits.strict else {}
        parsed = parse_statement(
            self.engine, statement.sql, {name: str(parser[name]) for name in parser}
        )
        form = parsed.form or statement.form
        database, settings = statement.database, dict(statement.settings)
        if only_reads(grant):
            if database in ("", "default"):
                database = self.reader_database.name
            check = StatementCheck(self.engine, self.table_functions, limits, database)
            check.check(parsed, settings)
            settings |= {"readonly": "2", "additional_table_filters": TABLE_FILTERS}
        elif statement.read_only:
            if session is not None and not parsed.is_read:
                raise READ_ONLY
            if settings.get("readonly") != "1":
                settings["readonly"] = "2"
        yield from self._query(statement, parsed, form, settings, database, session, tag, limits)

    def _query(
        self,
        statement: Statement,
        parsed: ParsedStatement,
        form: str,
        settings: dict[str, str],
        database: str,
        session: Session | None,
        tag: str,
        limits: Limits,
    ) -> Iterator[bytes]:
        sql = statement.sql
        settings["log_comment"] = f"{tag} {settings.get('log_comment', '')}".strip()
        own = session.connection if session else None
        settings = limits.lower_settings(
            settings, _is_streamed(sql, form, settings, own is not None)
        )
        if session is not None and parsed.kind in ("SetQuery", "UseQuery"):
            self._remember(session, sql, settings)
            return
        if session is not None and parsed.tree and parsed.tree.get("is_temporary"):
            own = self.sessions.open_connection(session)
        limiting = limits.set_statements if parsed.is_read else []
        setup = [*limiting, *_session_setup(session, statement.database)]
        database = database or "default"
        try:
            if session is not None and own is not None:
                with _with_settings(session, settings, database, limiting) as connection:
                    yield from stream_result(connection, sql, form)
            elif form in ARROW_WRITERS and READING_STATEMENT.match(sql):
                yield from self._arrow(sql, form, settings, database, setup)
            elif is_revision_query(sql, form, statement.revision):
                result = zero_revision_query(sql)
                body = self.engine.export(result, form, settings, database, setup)
                yield revision_block(b"".join(body), statement.revision)
            else:
                yield from self.engine.export(sql, form, settings, database, setup)
        except QueryFailed as error:
            raise _explain_size(error, form, settings, limits) from error

    def _remember(self, session: Session, sql: str, settings: dict[str, str]) -> None:
        """Try a SET or USE statement, then add it to the session."""
        statements = [*session.statements, sql]
        self.engine.connect(statements).close()
        self.sessions.set_statements(session, statements)
        if session.connection is not None:
            session.connection.query(sql)

    def _insert(self, statement: Statement, session: Session | None, tag: str) -> dict[str, str]:
        rows = memoryview(statement.rows or b"")
        chunks = (
            bytes(rows[at : at + INSERT_CHUNK_BYTES])
            for at in range(0, len(rows), INSERT_CHUNK_BYTES)
        )
        # a successful response means that the rows are stored
        settings = {**statement.settings, "async_insert": "0", "log_comment": tag}
        if statement.read_only:
            raise READ_ONLY
        into, form = statement.sql, statement.form
        if session is not None and session.connection is not None:
            with _with_settings(session, settings, statement.database) as connection:
                written = self.engine.insert_with(connection, into, form, chunks)
        else:
            setup = _session_setup(session, statement.database)
            with self.engine.session(settings, statement.database or "default", setup) as opened:
                written = self.engine.insert_with(opened, into, form, chunks)
        return {"written_rows": str(written), "written_bytes": str(len(rows))}

    def _arrow(
        self, sql: str, form: str, settings: dict[str, str], database: str, setup: Iterable[str]
    ) -> Iterator[bytes]:
        sink = _ArrowSink()
        result = self.engine.batches(sql, settings, database, setup)
        with result as (schema, batches), ARROW_WRITERS[form](sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                if sink.size > CHUNK_BYTES:
                    yield sink.drain()
        yield sink.drain()

    def kill(self, tag: str) -> None:
        """End the query that runs with `tag`, if there is one."""
        condition = f"startsWith(Settings['log_comment'], {quote_literal(tag)})"
        self.engine.command(f"KILL QUERY WHERE {condition} ASYNC")


@contextmanager
def _with_settings(
    session: Session, settings: Mapping[str, str], database: str, limiting: Iterable[str] = ()
) -> Iterator[Any]:
    """Yield the session's connection with settings that apply to one query."""
    # `readonly` cannot be unset again; the statement has been checked already
    own = {name: value for name, value in settings.items() if name != "readonly"}
    connection = session.connection
    with query_errors():
        try:
            for statement in (
                *(*limiting, *session.statements),
                *setup_statements(own, database or "default"),
            ):
                connection.query(statement)
            yield connection
        finally:
            for name in own:
                if not name.startswith("param_"):
                    connection.query(f"SET {name}=DEFAULT")
            for statement in ("USE default", *session.statements):
                connection.query(statement)


def _session_setup(session: Session | None, database: str) -> list[str]:
    """Return the statements that a query of the session runs first."""
    if session is None:
        return []
    return [*session.statements, *(["USE default"] if database == "default" else [])]


def _is_streamed(sql: str, form: str, settings: Mapping[str, str], connected: bool) -> bool:
    """Return whether the result is streamed, so that the memory limit covers it."""
    if not READING_STATEMENT.match(sql):
        return False
    if form in ARROW_WRITERS:
        return not connected
    return is_streamable(form) and "json_array_of_rows" not in f"{sql}{settings}"


def _explain_size(
    error: QueryFailed, form: str, settings: Mapping[str, str], limits: Limits
) -> QueryFailed:
    if error.code != TOO_LARGE or settings.get("max_result_bytes") != str(limits.max_whole_bytes):
        return error
    return QueryFailed(
        f"{error} A result in format {form} cannot be streamed and has at most "
        f"{limits.max_whole_bytes >> 20} MiB. Use a streamed format (Native, ArrowStream, "
        "RowBinary, JSONEachRow, CSV, TabSeparated, also with names), or "
        f"{limits.how_to_raise('memory')}.",
        error.code,
    )


class _ArrowSink:
    """A file that Arrow writes to, and that is drained from time to time."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._written = 0
        self.size = 0

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        self.size += len(self._parts[-1])
        self._written += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._written

    def drain(self) -> bytes:
        stream_result, self._parts, self.size = self._parts, [], 0
        return b"".join(stream_result)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Do nothing: the written bytes can still be drained."""
