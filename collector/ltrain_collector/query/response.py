"""HTTP responses of the ClickHouse port, and the handshake of clickhouse-go, which Grafana uses.

In the handshake the client queries `revision()`. It decodes this response in its own revision of
ClickHouse's native protocol, and later ones in the returned revision. chDB writes Native blocks of
revision 0, so the response is revision 0.
"""

import json
import re
import secrets
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import Send

from ltrain_collector.errors import QueryFailed
from ltrain_collector.query.compression import Packer, Plain

MAX_HEADER_CHARACTERS = 256
"""Characters of a response header with text from the client."""

BAD_REQUEST = (6, 8, 15, 25, 26, 27, 36, 38, 41, 44, 53, 62, 72, 117, 167, 168, 321, 376, 427, 441)
NOT_FOUND = (46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 336, 511)
STATUS = {
    **dict.fromkeys(BAD_REQUEST, 400),
    **dict.fromkeys(NOT_FOUND, 404),
    **dict.fromkeys((192, 193, 452, 497, 512, 516), 403),
    **{194: 401, 159: 408, 48: 501, 76: 503, 209: 503, 439: 503},
}
"""HTTP status by ClickHouse's error code, as its server sends them; 500 for all others."""

REVISION = re.compile(r"\brevision\(\s*\)", re.I)

BLOCK_INFO = b"\x01\x00\x02\xff\xff\xff\xff\x00"

FLAGS_SINCE = 54454
"""First revision with a byte after each column's type, for custom serialization."""


class ResultResponse:
    """A response whose head is sent with its first part; an error before it sets the status.

    starlette's streams send the head before the first part is known.
    """

    def __init__(self, send: Send, form: str, query_id: str, encoding: str, packer: Packer) -> None:
        self._send = send
        self._packer = packer
        self._tag = secrets.token_hex(8)
        self._started = False
        self._status = 200
        self._headers = {
            "x-clickhouse-query-id": _one_line(query_id),
            "x-clickhouse-server-display-name": "ltrain",
            "x-clickhouse-timezone": "UTC",
            "x-clickhouse-format": _one_line(form),
            "x-clickhouse-exception-tag": self._tag,
        }
        if encoding:
            self._headers["content-encoding"] = encoding

    def pack(self, part: Any) -> Any:
        """Compress a part; the summary of an insert is not compressed."""
        return self._packer.compress(part) if isinstance(part, bytes) else part

    async def write(self, part: Any) -> None:
        """Send a compressed part, or put the summary of an insert into the head."""
        if isinstance(part, dict):
            self._headers["x-clickhouse-summary"] = json.dumps(part)
            del self._headers["x-clickhouse-format"]
        elif part:
            await self._write(part)

    async def end(self) -> None:
        """Send the end of the response."""
        rest = self._packer.flush()
        if not self._started:
            del self._headers["x-clickhouse-exception-tag"]
            if not rest:
                self._headers["content-length"] = "0"
        await self._write(rest, more=False)

    async def fail(self, error: QueryFailed) -> None:
        """Send an error: with a status, or in mid-stream as ClickHouse does."""
        text = f"{error}\n".encode()
        if self._started:
            head = f"\r\n__exception__\r\n{self._tag}\r\n".encode()
            tail = f"{len(text)} {self._tag}\r\n__exception__\r\n".encode()
            packed = self._packer.compress(head + text + tail) + self._packer.flush()
            await self._write(packed, more=False)
            return
        self._packer = Plain()
        self._status, self._headers = error_head(error.code, self._headers["x-clickhouse-query-id"])
        self._headers |= {"content-type": "text/plain; charset=utf-8"}
        self._headers |= {"content-length": str(len(text))}
        await self._write(text, more=False)

    async def _write(self, part: bytes, more: bool = True) -> None:
        if not self._started:
            self._started = True
            raw = [(name.encode(), value.encode()) for name, value in self._headers.items()]
            await self._send(
                {"type": "http.response.start", "status": self._status, "headers": raw}
            )
        await self._send({"type": "http.response.body", "body": part, "more_body": more})


def _one_line(text: str) -> str:
    """Remove characters that would end a header: the text comes from the request."""
    return re.sub(r"[^\x20-\x7e]", "", text)[:MAX_HEADER_CHARACTERS]


def error_head(code: int, query_id: str = "") -> tuple[int, dict[str, str]]:
    """Return the HTTP status and the headers of ClickHouse's error `code`."""
    headers = {"x-clickhouse-exception-code": str(code)}
    if query_id:
        headers["x-clickhouse-query-id"] = query_id
    return STATUS.get(code, 500), headers


def error_response(error: QueryFailed) -> PlainTextResponse:
    """Return the response for a query that failed before it was run."""
    return PlainTextResponse(f"{error}\n", *error_head(error.code))


def is_revision_query(sql: str, form: str, revision: int) -> bool:
    """Return whether a query is the handshake."""
    return revision > 0 and form == "Native" and REVISION.search(sql) is not None


def zero_revision_query(sql: str) -> str:
    """Return the query with 0 in place of `revision()`."""
    return REVISION.sub("toUInt32(0)", sql)


def revision_block(plain: bytes, revision: int) -> bytes:
    """Convert a Native block of one row, of strings and 32-bit numbers, to `revision`."""
    columns, rows, at = plain[0], plain[1], 2
    parts = [BLOCK_INFO, plain[:2]]
    for _ in range(columns):
        end = at + 1 + plain[at]  # the name, then the type
        kind = plain[end + 1 : end + 1 + plain[end]]
        end += 1 + plain[end]
        parts.append(plain[at:end] + (b"\0" if revision >= FLAGS_SINCE else b""))
        at, end = end, end + (4 * rows if kind == b"UInt32" else 1 + plain[end])
        parts.append(plain[at:end])
        at = end
    return b"".join(parts)
