"""What a user can mend about the store, the collector and a query."""

import re
from pathlib import Path

from ltrain_instrument.errors import LtrainError

UNKNOWN_TABLE, UNKNOWN_DATABASE = 60, 81

NO_CODE = 1002
"""ClickHouse's UNKNOWN_EXCEPTION: it failed without a number of its own."""


KEYLESS = "Without a key this store is only read"
"""Begins the refusal of a change, by which our own client knows that an owner's key allows it."""


class BadDsn(LtrainError, ValueError):
    """A store's address that cannot be read."""


class NoStore(LtrainError, LookupError):
    """There is no store where one was looked for."""


class StoreInUse(LtrainError, OSError):
    """A folder that another process, or another folder that this process, has open."""


class StoreUnusable(LtrainError, OSError):
    """A folder that cannot be made, read or written."""


class StoreDamaged(StoreUnusable):
    """A store whose files are not as ClickHouse left them."""


class StoreGone(StoreUnusable):
    """A folder that was removed or replaced while it was open."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"The store's folder {directory} was removed or replaced while it was open: what is "
            "sent is not kept. Stop this process and start it again, which makes a new store, or "
            "bring a copy back with `ltrain store restore COPY --store chdb:///new/folder`."
        )


class StoreUnreachable(LtrainError, ConnectionError):
    """A server that does not answer or does not let us in."""


class PortTaken(LtrainError, OSError):
    """A port that another process listens on."""

    def __init__(self, port: int, option: str) -> None:
        super().__init__(
            f"Port {port} on 127.0.0.1 is taken. Stop what listens there (`ss -ltnp 'sport = "
            f":{port}'` names it), or choose another with {option}; 0 is any "
            "free one. One `ltrain up` serves all processes of this machine."
        )


class QueryFailed(LtrainError, RuntimeError):
    """SQL that ClickHouse refused, with ClickHouse's own error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
        """ClickHouse's number, e.g. 60 for an unknown table; 1002 where it gave none."""

    @property
    def table_missing(self) -> bool:
        """Whether a table, or its database, is not there."""
        return self.code in (UNKNOWN_TABLE, UNKNOWN_DATABASE)


class NotOwner(QueryFailed):
    """A change of a store without keys by who has not its secret."""


def code_of(message: str) -> int:
    """Give ClickHouse's error number out of its message."""
    found = re.search(r"Code: (\d+)\.", message)
    return int(found[1]) if found else NO_CODE


class BadRequest(LtrainError, ValueError):
    """An OTLP request that no retry will mend."""


MEND = (
    "A copy that `ltrain store backup` made comes back with `ltrain store restore COPY --store "
    "chdb:///new/folder`."
)


def unusable(directory: Path, why: str) -> StoreUnusable:
    """Name the folder and what is wrong with it."""
    return StoreUnusable(
        f"The store's folder {directory} {why}. It must be a folder that this user can write; "
        "name another with --dir, with --store chdb:///dir, or with LTRAIN_HOME."
    )


class BadFormat(LtrainError, ValueError):
    """An output format that does not fit where it goes."""


class StoreNewer(LtrainError, RuntimeError):
    """A store that a newer program has changed."""


class BadTable(LtrainError, LookupError):
    """A table that is not there."""


class NotMigrated(QueryFailed):
    """A query of tables or views that the store does not have yet."""


class BadPrune(LtrainError, ValueError):
    """A choice of what may go that names nothing, or a table that is not ours to prune."""


class BadBackup(LtrainError, OSError):
    """A copy of a store that cannot be written, read or restored."""


class TooMuch(LtrainError, MemoryError):
    """A result that is more than memory should hold."""


class BadParameter(LtrainError, ValueError):
    """A value for a query's parameter that is not `name=value`."""


class DamagedData(QueryFailed):
    """A query of rows whose files are damaged."""
