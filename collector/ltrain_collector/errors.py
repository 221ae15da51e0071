"""Errors of the store, the collector and queries that a user can fix."""

import re
from pathlib import Path

from ltrain_instrument.errors import LtrainError

UNKNOWN_TABLE, UNKNOWN_DATABASE = 60, 81
ACCESS_DENIED, AUTHENTICATION_FAILED = 497, 516
"""Error codes of ClickHouse, by its own names."""

NO_CODE = 1002
"""ClickHouse's UNKNOWN_EXCEPTION, also used for errors without a code."""


READ_ONLY_REFUSAL = "Without an admin key this store is read-only"
"""The start of the refusal of a change."""


class BadDsn(LtrainError, ValueError):
    """A store address that is invalid."""


class NoStore(LtrainError, LookupError):
    """There is no store at this address."""


class StoreInUse(LtrainError, OSError):
    """Another process has the folder open, or this process has another folder open."""


class StoreUnusable(LtrainError, OSError):
    """A folder that cannot be created, read or written."""


class TooFewDescriptors(LtrainError, OSError):
    """A process that may open too few files for a store."""


class StoreDamaged(StoreUnusable):
    """A store whose files are missing or changed."""


class StoreGone(StoreUnusable):
    """A folder that was removed or replaced while it was open."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"The store's folder {directory} was removed or replaced while it was open, so nothing "
            "more is stored. Restart this process, which creates a new store, or restore a backup "
            "with `ltrain store restore BACKUP --store chdb:///new/folder`."
        )


class StoreUnreachable(LtrainError, ConnectionError):
    """A server that does not answer or refuses the connection."""


class BadTls(LtrainError, ValueError):
    """The files are not a valid certificate and key."""


class BadTarget(LtrainError, ValueError):
    """A target of `ltrain up --forward` that is invalid."""


class OpenToAll(LtrainError, PermissionError):
    """Other machines could reach a server, and no key is needed."""

    def __init__(self, what: str, host: str, role: str, folder: Path | None) -> None:
        """Take what is served, and the folder of the store whose keys it would need.

        Args:
            folder: None for a store on another machine.
        """
        fix = f"Make a key with `ltrain key make {role} --dir {folder}`, which every request then"
        if folder is None:
            fix = "Run it on the machine of the store, and make a key there, which every request"
        super().__init__(
            f"{what} without keys is served only on this machine, not on '{host}'. {fix} needs, or "
            "remove --host."
        )


class PortTaken(LtrainError, OSError):
    """Another process listens on the port."""

    def __init__(self, port: int, option: str, hint: str = "") -> None:
        super().__init__(
            f"Port {port} on 127.0.0.1 is taken. Stop the process that listens there (`ss -ltnp "
            f"'sport = :{port}'` names it), or choose another port with {option}; 0 takes any free "
            f"one.{hint}"
        )


class BadPort(LtrainError, OSError):
    """This process cannot listen on the port or the address."""

    def __init__(self, host: str, port: int, option: str, why: str) -> None:
        super().__init__(
            f"ltrain cannot listen on port {port} of {host}: {why}. Choose a port from 1024 to "
            f"65535 with {option}, and an address of this machine with --host."
        )


class QueryFailed(LtrainError, RuntimeError):
    """A query that failed, with ClickHouse's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
        """ClickHouse's error code, e.g. 60 for an unknown table; 1002 if there is none."""

    @property
    def table_missing(self) -> bool:
        """Whether the table or its database does not exist."""
        return self.code in (UNKNOWN_TABLE, UNKNOWN_DATABASE)


class NotOwner(QueryFailed):
    """A change of a store without keys by a user who cannot read its secret."""


def code_of(message: str) -> int:
    """Return ClickHouse's error code from its message."""
    match = re.search(r"Code: (\d+)\.", message)
    return int(match[1]) if match else NO_CODE


class BadRequest(LtrainError, ValueError):
    """An OTLP request that is invalid and must not be retried."""


class OtlpError(LtrainError):
    """An OTLP request that is not stored, with its statuses.

    gRPC codes are numbers here, so that encoding does not import gRPC.
    """

    status = 503
    """HTTP status."""
    code = 14
    """gRPC code; 14 is UNAVAILABLE."""
    reason = "engine"
    """The reason under which it is counted."""
    retryable = True
    """Whether the client can retry; the response then names a delay."""
    retry_after = 1
    """The delay in seconds."""


class Malformed(OtlpError, BadRequest):
    """A body that does not have the announced type or encoding."""

    status, code, reason, retryable = 400, 3, "malformed", False


class TooLarge(OtlpError, BadRequest):
    """A request that is larger than allowed."""

    status, code, reason, retryable = 413, 3, "too_large", False


class Unsupported(OtlpError, BadRequest):
    """A content type or compression that is not supported."""

    status, code, reason, retryable = 415, 12, "unsupported", False


class TooSlow(OtlpError, TimeoutError):
    """A body that does not arrive in time."""

    code, reason = 4, "too_slow"


class Overloaded(OtlpError, MemoryError):
    """The requests in memory have reached their limit."""

    code, reason = 8, "overloaded"


class OverBudget(OtlpError, RuntimeError):
    """A request that exceeds the budget of its key, also later."""

    status, code, reason, retryable = 413, 8, "budget", False


class OverMinute(OtlpError, RuntimeError):
    """A request that exceeds the budget of its key in this minute."""

    status, code, reason = 429, 8, "minute"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(OtlpError, RuntimeError):
    """The engine could not store the rows."""


class ReservedDisk(OtlpError, OSError):
    """The rest of the disk is reserved for ltrain's own processes."""

    reason = "reserve"
    retry_after = 5


class HttpError(LtrainError, ValueError):
    """An error that is sent as an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def code(self) -> int:
        """The gRPC code; 2 is UNKNOWN."""
        return RPC_CODES.get(self.status, 2)


RPC_CODES = {401: 16, 403: 7, 404: 5, 405: 12, 503: 14}
"""gRPC codes by HTTP status."""


RESTORE_HINT = (
    "Restore a backup of `ltrain store backup` with `ltrain store restore BACKUP --store "
    "chdb:///new/folder`."
)


def unusable(directory: Path, why: str) -> StoreUnusable:
    """Return the error of a folder that cannot be used."""
    return StoreUnusable(
        f"The store's folder {directory} {why}. It must be a folder that this user can write to; "
        "name another with --dir, --store chdb:///dir or LTRAIN_HOME."
    )


class NoTarget(LtrainError, LookupError):
    """An id that no execution in the store has, or that several have."""


class BadFeedback(LtrainError, ValueError):
    """Feedback whose value or name is invalid."""


class NotSaved(LtrainError, RuntimeError):
    """Feedback that the store does not take."""

    def __init__(self, store: str, why: str) -> None:
        super().__init__(
            f"The feedback is not saved: the store {store} takes no spans from this process "
            f"({why.rstrip('.')}). Open the store that `ltrain up` serves, as its owner or with an "
            "admin key; into a table that an OpenTelemetry Collector fills, send feedback through "
            "that Collector."
        )


class BadTime(LtrainError, ValueError):
    """A time that is not ISO 8601."""


class BadSource(LtrainError, ValueError):
    """A source of an import that is invalid."""


class SourceFailed(LtrainError, RuntimeError):
    """A server from which an import reads refuses, or does not answer."""


class TooMuchAtOnce(SourceFailed):
    """An answer of a server that is too large for the memory."""


class NotThere(SourceFailed):
    """A server has no such list, as one of another version."""


class BadFormat(LtrainError, ValueError):
    """An output format that is unknown or cannot be written to this target."""


class NothingToExport(LtrainError, LookupError):
    """An export that selects no record."""


class StoreNewer(LtrainError, RuntimeError):
    """A store that a newer ltrain has changed."""


class BadTable(LtrainError, LookupError):
    """A table that does not exist."""


class NotMigrated(QueryFailed):
    """A query of tables or views that the store lacks until it is migrated."""


class BadPrune(LtrainError, ValueError):
    """A prune without a condition, or of a table that ltrain did not create."""


class BadBackup(LtrainError, OSError):
    """A backup that cannot be written, read or restored."""


class TooMuch(LtrainError, MemoryError):
    """A result that is too large for memory."""


class BadParameter(LtrainError, ValueError):
    """A query parameter that is not `name=value`."""


class DamagedData(QueryFailed):
    """A query of rows whose files are damaged."""
