"""Runs one statement in one thread, its answer in parts."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ltrain_collector.engine import Engine, literal, preamble, query_errors
from ltrain_collector.errors import QueryFailed
from ltrain_collector.formats import READS, in_parts, parts
from ltrain_collector.grants import Grant
from ltrain_collector.query import greeting
from ltrain_collector.query.access import DENIED, FILTERS, Reader, without_hints
from ltrain_collector.query.limits import TOO_LARGE, Limits, Roles, only_reads
from ltrain_collector.query.outside import Outside, changes
from ltrain_collector.query.sessions import Session, Sessions
from ltrain_collector.query.statement import Statement
from ltrain_collector.query.syntax import Parsed, parse, too_deep

CHUNK = 1 << 18
INSERTED = 8 << 20
"""Bytes that are handed to the engine at a time."""

READ_ONLY = QueryFailed(
    "Code: 164. DB::Exception: Cannot execute query in readonly mode: a GET only reads; POST it. "
    "(READONLY)",
    164,
)
ARROW = {"ArrowStream": pa.ipc.new_stream, "Arrow": pa.ipc.new_file}
"""Formats that are streamed from the engine's Arrow batches."""


@dataclass(frozen=True, slots=True)
class Runner:
    engine: Engine
    sessions: Sessions
    reader: Reader
    outside: Outside
    roles: Roles

    def run(
        self, statement: Statement, session: Session | None, grant: Grant | None, tag: str
    ) -> Generator[Any, None, None]:
        """Yield the answer in parts: first the summary where it is known, then bytes.

        Args:
            tag: begins the query's `log_comment`, by which it is found and killed.
        """
        if statement.rows is not None:
            if only_reads(grant):
                raise QueryFailed(
                    f"Code: {DENIED}. DB::Exception: A key of role 'query' inserts nothing; "
                    "`ltrain key make admin` makes one that does. (ACCESS_DENIED)",
                    DENIED,
                )
            if grant is None:
                raise changes()
            yield self._insert(statement, session, tag)
            return
        try:
            yield from self._limited(statement, session, grant, tag)
        except RecursionError:
            raise too_deep() from None
        except QueryFailed as error:
            explained = self.roles.of(grant).explained(error)
            raise (without_hints(explained) if only_reads(grant) else explained) from error

    def _limited(
        self, statement: Statement, session: Session | None, grant: Grant | None, tag: str
    ) -> Iterator[bytes]:
        """Run a statement under the limits of its role."""
        limits = self.roles.of(grant)
        parser = limits.parser if limits.strict else {}
        parsed = parse(self.engine, statement.sql, {name: str(parser[name]) for name in parser})
        form = parsed.form or statement.form
        database, settings = statement.database, dict(statement.settings)
        if only_reads(grant):
            database = "otel" if database in ("", "default") else database
            self.reader.check(parsed, settings, database)
            settings |= {"readonly": "2", "additional_table_filters": FILTERS}
        elif statement.reading or grant is None:
            if grant is None:
                self.outside.check(parsed, settings)
            if statement.reading and session is not None and not parsed.reads:
                raise READ_ONLY
            if settings.get("readonly") != "1":
                settings["readonly"] = "2"
        yield from self._query(statement, parsed, form, settings, database, session, tag, limits)

    def _query(
        self,
        statement: Statement,
        parsed: Parsed,
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
        settings = limits.lowered(settings, _streamed(sql, form, settings, own is not None))
        if session is not None and parsed.kind in ("SetQuery", "UseQuery"):
            self._keep(session, sql, settings)
            return
        if session is not None and parsed.tree and parsed.tree.get("is_temporary"):
            own = self.sessions.connect(session)
        limiting = limits.statements if parsed.reads else []
        before = [*limiting, *_before(session, statement.database)]
        database = database or "default"
        try:
            if session is not None and own is not None:
                with _set(session, settings, database, limiting) as connection:
                    yield from parts(connection, sql, form)
            elif form in ARROW and READS.match(sql):
                yield from self._arrow(sql, form, settings, database, before)
            elif greeting.asks(sql, form, statement.revision):
                asked = greeting.told(sql)
                plain = self.engine.formatted(asked, form, settings, database, before)
                yield greeting.block(b"".join(plain), statement.revision)
            else:
                yield from self.engine.formatted(sql, form, settings, database, before)
        except QueryFailed as error:
            raise _advised(error, form, settings, limits) from error

    def _keep(self, session: Session, sql: str, settings: dict[str, str]) -> None:
        """Try a SET or USE, then let the session remember it."""
        statements = [*session.statements, sql]
        self.engine.connect(statements).close()
        self.sessions.keep(session, statements)
        if session.connection is not None:
            session.connection.query(sql)

    def _insert(self, statement: Statement, session: Session | None, tag: str) -> dict[str, str]:
        rows = memoryview(statement.rows or b"")
        chunks = (bytes(rows[at : at + INSERTED]) for at in range(0, len(rows), INSERTED))
        # what is answered for is stored: never later, and never only perhaps
        settings = {**statement.settings, "async_insert": "0", "log_comment": tag}
        if statement.reading:
            raise READ_ONLY
        into, form = statement.sql, statement.form
        if session is not None and session.connection is not None:
            with _set(session, settings, statement.database) as connection:
                written = self.engine.insert_over(connection, into, form, chunks)
        else:
            before = _before(session, statement.database)
            with self.engine.session(settings, statement.database or "default", before) as opened:
                written = self.engine.insert_over(opened, into, form, chunks)
        return {"written_rows": str(written), "written_bytes": str(len(rows))}

    def _arrow(
        self, sql: str, form: str, settings: dict[str, str], database: str, before: Iterable[str]
    ) -> Iterator[bytes]:
        sink = _Sink()
        asked = self.engine.batches(sql, settings, database, before)
        with asked as (schema, batches), ARROW[form](sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                if sink.size > CHUNK:
                    yield sink.take()
        yield sink.take()

    def kill(self, tag: str) -> None:
        """End the query that runs under `tag`, if it does."""
        found = f"startsWith(Settings['log_comment'], {literal(tag)})"
        self.engine.command(f"KILL QUERY WHERE {found} ASYNC")


@contextmanager
def _set(
    session: Session, settings: Mapping[str, str], database: str, limiting: Iterable[str] = ()
) -> Iterator[Any]:
    """Yield the session's connection with settings for one query; later ones do not see them."""
    # once set it could not be taken back; who only reads was looked at already
    own = {name: value for name, value in settings.items() if name != "readonly"}
    connection = session.connection
    with query_errors():
        try:
            for statement in (
                *(*limiting, *session.statements),
                *preamble(own, database or "default"),
            ):
                connection.query(statement)
            yield connection
        finally:
            for name in own:
                if not name.startswith("param_"):
                    connection.query(f"SET {name}=DEFAULT")
            for statement in ("USE default", *session.statements):
                connection.query(statement)


def _before(session: Session | None, database: str) -> list[str]:
    """Return what a query of the session runs first."""
    if session is None:
        return []
    return [*session.statements, *(["USE default"] if database == "default" else [])]


def _streamed(sql: str, form: str, settings: Mapping[str, str], connected: bool) -> bool:
    """Return whether the answer is made in parts, which its memory limit covers."""
    if not READS.match(sql):
        return False
    if form in ARROW:
        return not connected
    return in_parts(form) and "json_array_of_rows" not in f"{sql}{settings}"


def _advised(
    error: QueryFailed, form: str, settings: Mapping[str, str], limits: Limits
) -> QueryFailed:
    if error.code != TOO_LARGE or settings.get("max_result_bytes") != str(limits.whole):
        return error
    return QueryFailed(
        f"{error} Format {form} is answered in one piece of at most {limits.whole >> 20} MiB; "
        "Native, ArrowStream, RowBinary, JSONEachRow, CSV and TabSeparated, with names too, are "
        f"streamed. Or {limits.raised('memory')}.",
        error.code,
    )


class _Sink:
    """A file for Arrow to write to, emptied from time to time."""

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

    def take(self) -> bytes:
        parts, self._parts, self.size = self._parts, [], 0
        return b"".join(parts)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """What was written can still be taken."""
