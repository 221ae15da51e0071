"""The file of chains, by which a gateway that starts again continues its conversations.

* It has digests, ids and names, and no content.
* A line that is damaged or half-written is ignored: its call begins a new conversation at worst.
* When the file is full it becomes the previous one, so that the two have a bounded size.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

MAX_FILE = 8 << 20
"""Bytes of a file: about 50,000 calls."""

Digest = Annotated[str, Field(pattern="^([0-9a-f]{2}){0,16}$")]
Text = Annotated[str, Field(max_length=256)]
SpanId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
TraceId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ChainLine(_Line):
    """A chain that began."""

    kind: Literal["chain"] = "chain"
    id: Digest
    at: float
    trace: TraceId
    session: Text
    owner: Digest
    agent: Text
    family: Digest
    client_session: Digest = ""
    parent: SpanId | None = None


class LinkLine(_Line):
    """A history that a call of a chain has left."""

    kind: Literal["link"] = "link"
    chain: Digest
    at: float
    key: Digest
    position: int
    profile: int
    calls: Digest = ""


class SessionLine(_Line):
    """A session of a client, as it is from now on."""

    kind: Literal["session"] = "session"
    key: Digest
    owner: Digest
    at: float
    trace: TraceId
    session: Text
    number: int
    is_bucket: bool
    is_shared: bool


class NameLine(_Line):
    """The name of a client's kind of agent."""

    kind: Literal["name"] = "name"
    client: Digest
    family: Digest
    name: Text
    tools: Annotated[list[Text], Field(max_length=128)] = []


Line = ChainLine | LinkLine | SessionLine | NameLine
_lines: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


class ChainLog:
    """The lines in a folder."""

    def __init__(self, folder: Path, kept: Callable[[], Iterable[Line]]) -> None:
        """Use a folder; `kept` returns the first lines of each new file."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = folder / "conversations.jsonl"
        self._previous = folder / "conversations.old.jsonl"
        self._size = self._file.stat().st_size if self._file.exists() else 0
        self._kept = kept
        self._descriptor: int | None = None

    def read(self) -> Iterator[Line]:
        """Yield the lines that are valid, the oldest first."""
        for path in (self._previous, self._file):
            content = path.read_bytes() if path.exists() else b""
            for line in content.splitlines():
                with suppress(ValidationError):  # half-written or damaged
                    yield _lines.validate_json(line)

    def append(self, *lines: Line) -> None:
        """Write lines; a disk that is full costs the lines, not the call."""
        with suppress(OSError):  # the recording of the call reports a disk that is full
            if self._size >= MAX_FILE:
                self.close()
                os.replace(self._file, self._previous)
                self._size = 0
                lines = (*self._kept(), *lines)
            # the first line break ends a line that a crash left half-written
            text = b"\n" + b"".join(each.model_dump_json().encode() + b"\n" for each in lines)
            self._size += os.write(self._open(), text)

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._descriptor = os.open(self._file, flags, 0o600)
        return self._descriptor

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
