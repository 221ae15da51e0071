"""The readers of files that are not OTLP, by the form of their first record.

A new source is a module with a class of the protocol `FileReader`, and its place in `READERS`.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from ltrain_collector.sources.atif import AtifTrajectory
from ltrain_collector.sources.braintrust import BraintrustLogs
from ltrain_collector.sources.chats import ChatFile
from ltrain_collector.sources.claude_code import ClaudeCodeSession
from ltrain_collector.sources.codex import CodexSession
from ltrain_collector.sources.jaeger import JaegerTraces
from ltrain_collector.sources.langfuse import LangfuseExport
from ltrain_collector.sources.langsmith import LangSmithRuns
from ltrain_collector.sources.opik import OpikExport
from ltrain_collector.sources.tempo import TempoTrace
from ltrain_collector.sources.weave import WeaveCalls

Record = dict[str, Any]


class FileReader(Protocol):
    """Makes OTLP of the records of one file, in their order."""

    written_by: ClassVar[str]
    """The programs that write such files."""

    @classmethod
    def reads(cls, record: Record) -> bool:
        """Return whether a file that begins with this record is of this kind."""
        ...

    def __init__(self, modified: int) -> None:
        """Begin a file that was modified at this time, in nanoseconds since the epoch."""
        ...

    def add(self, record: Record) -> Iterator[Record]:
        """Yield the OTLP requests, as JSON, that are complete with this record.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: when the record has another form.
        """
        ...

    def end(self) -> Iterator[Record]:
        """Yield the requests that are complete with the file."""
        ...


READERS: tuple[type[FileReader], ...] = (
    CodexSession,
    ClaudeCodeSession,
    LangSmithRuns,
    LangfuseExport,
    BraintrustLogs,
    WeaveCalls,
    OpikExport,
    AtifTrajectory,
    JaegerTraces,
    TempoTrace,
    ChatFile,
)


def reader_of(record: object) -> type[FileReader] | None:
    """Return the reader of a file that begins with this record; None for OTLP and the unknown."""
    if not isinstance(record, dict):
        return None
    return next((reader for reader in READERS if reader.reads(record)), None)
