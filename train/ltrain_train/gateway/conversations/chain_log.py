"""The file of chains, by which a gateway that starts again continues its conversations.

* It has digests, ids and names, and no content.
* A line that is damaged or half-written is ignored: its call begins a new conversation at worst.
* When the file is full it becomes the previous one, so that the two have a bounded size.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError

MAX_FILE = 8 << 20
"""Bytes of a file: about 50,000 calls."""
FLUSH = 0.2
"""Seconds until a line is written; a gateway that is killed loses the last ones."""

Digest = Annotated[str, Field(pattern="^([0-9a-f]{2}){0,16}$")]
Text = Annotated[str, Field(max_length=256)]
SpanId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
TraceId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class ChainLine:
    """A chain that began."""

    id: Digest
    at: float
    trace: TraceId
    session: Text
    owner: Digest
    agent: Text
    family: Digest
    client_session: Digest = ""
    parent: SpanId | None = None
    began: float = 0.0
    """Unix seconds at which its conversation began; 0: long ago."""
    kind: Literal["chain"] = "chain"


@dataclass(frozen=True, slots=True)
class LinkLine:
    """A history that a call of a chain has left."""

    chain: Digest
    at: float
    key: Digest
    position: int
    profile: int
    calls: Digest = ""
    answer: Digest = ""
    kind: Literal["link"] = "link"


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session of a client, as it is from now on."""

    key: Digest
    owner: Digest
    at: float
    trace: TraceId
    session: Text
    number: int
    is_bucket: bool
    is_shared: bool
    began: float = 0.0
    """Unix seconds at which its conversation began; 0: long ago."""
    kind: Literal["session"] = "session"


@dataclass(frozen=True, slots=True)
class NameLine:
    """The name of a client's kind of agent."""

    client: Digest
    family: Digest
    name: Text
    tools: Annotated[list[Text], Field(max_length=128)]
    kind: Literal["name"] = "name"


Line = ChainLine | LinkLine | SessionLine | NameLine
_lines: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


class ChainLog:
    """The lines in a folder."""

    def __init__(self, folder: Path, kept: Callable[[], Iterable[Line]]) -> None:
        """Use a folder; `kept` returns the first lines of each new file."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = folder / "conversations.jsonl"
        self._previous = folder / "conversations.old.jsonl"
        self._kept = kept
        self._pending: deque[Line] = deque()
        self._timer: threading.Timer | None = None
        self._writing = threading.Lock()

    def read(self) -> Iterator[Line]:
        """Yield the lines that are valid, the oldest first."""
        for path in (self._previous, self._file):
            content = path.read_bytes() if path.exists() else b""
            for line in content.splitlines():
                with suppress(ValidationError):  # half-written or damaged
                    yield _lines.validate_json(line)

    def append(self, *lines: Line) -> None:
        """Write lines soon, in another thread."""
        self._pending += lines
        if self._timer is None:
            self._timer = threading.Timer(FLUSH, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Write all lines; a disk that is full costs the lines, not the call."""
        with self._writing, suppress(OSError):  # the recording of calls reports a full disk
            self._timer = None  # before the lines are taken: a later one starts another timer
            lines = [self._pending.popleft() for _ in range(len(self._pending))]
            if self._file.exists() and self._file.stat().st_size >= MAX_FILE:
                os.replace(self._file, self._previous)
                lines = [*self._kept(), *lines]
            # the first line break ends a line that a crash left half-written
            text = b"\n".join([b"", *map(orjson.dumps, lines), b""])
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, text)
            finally:
                os.close(file)

    def close(self) -> None:
        """Write the lines that are left."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
