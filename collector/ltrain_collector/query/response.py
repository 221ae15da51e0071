"""HTTP responses of the ClickHouse port."""

import json
import re
import secrets
from typing import Any

from ltrain_collector.errors import QueryFailed
from ltrain_collector.http import Send, send_response
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


class Response:
    """A response whose head is sent with its first part; an error before it sets the status."""

    def __init__(self, send: Send, form: str, query_id: str, encoding: str, packer: Packer) -> None:
        self._send = send
        self._packer = packer
        self._tag = secrets.token_hex(8)
        self._started = False
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
        await send_error(self._send, error.code, text, self._headers["x-clickhouse-query-id"])

    async def _write(self, part: bytes, more: bool = True) -> None:
        if not self._started:
            self._started = True
            raw = [(name.encode(), value.encode()) for name, value in self._headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._send({"type": "http.response.body", "body": part, "more_body": more})


def _one_line(text: str) -> str:
    """Remove characters that would end a header: the text comes from the request."""
    return re.sub(r"[^\x20-\x7e]", "", text)[:MAX_HEADER_CHARACTERS]


async def send_error(send: Send, code: int, text: bytes, query_id: str = "") -> None:
    """Send ClickHouse's error `code` with its HTTP status."""
    headers = {"x_clickhouse_exception_code": str(code)}
    if query_id:
        headers["x_clickhouse_query_id"] = query_id
    await send_response(send, STATUS.get(code, 500), text, **headers)
