"""What a ClickHouse-HTTP request asks for, read from its URL, headers and body."""

import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from ltrain_collector.asgi import Refused

TRANSPORT = {
    "buffer_size",
    "client_protocol_version",
    "compress",
    "database",
    "decompress",
    "default_format",
    "enable_http_compression",
    "http_headers_progress_interval_ms",
    "http_zlib_compression_level",
    "password",
    "query",
    "query_id",
    "quota_key",
    "role",
    "send_progress_in_http_headers",
    "session_check",
    "session_id",
    "session_timeout",
    "user",
    "wait_end_of_query",
}
"""URL parameters that are about the transport; every other one is a setting or a parameter."""

INSERT = re.compile(
    rb"\s*(?:/\*.*?\*/\s*)?(INSERT\s+INTO\s+(?:TABLE\s+)?[\w.`\"]+\s*(?:\([^)]*\)\s*)?"
    rb"(?:SETTINGS\s+[^()]*?)?)FORMAT\s+(\w+)[ \t]*(?:\r?\n|;|$)",
    re.IGNORECASE | re.DOTALL,
)
FORMAT = re.compile(r"\bFORMAT\s+(\w+)[\s;]*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One query, or one insert where `rows` is not None."""

    sql: str
    """Without its FORMAT; of an insert all that is before it."""
    form: str
    settings: Mapping[str, str]
    database: str
    rows: bytes | None = None


def read(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Statement:
    """Read a request.

    Raises:
        Refused: when it uses what is not served here.
    """
    fields = dict(parse_qsl(url, keep_blank_values=True))
    kind = headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        fields |= _form(kind, body)
        body = b""
    if fields.get("decompress") == "1":
        raise Refused(501, "Code: 48. DB::Exception: Native compressed blocks are not read here.")
    body = _unpack(body, headers.get("content-encoding", ""))
    settings = {name: value for name, value in fields.items() if name not in TRANSPORT}
    if method == "GET":
        settings.setdefault("readonly", "2")
    database = fields.get("database") or headers.get("x-clickhouse-database", "default")
    query = fields.get("query", "").encode()
    if found := INSERT.match(query or body):
        rows = query[found.end() :] + body if query else body[found.end() :]
        return Statement(found[1].decode(), found[2].decode(), settings, database, rows)
    sql = b"\n".join(part for part in (query, body) if part).decode()
    form = FORMAT.search(sql)
    default = fields.get("default_format") or headers.get("x-clickhouse-format", "TabSeparated")
    return Statement(FORMAT.sub("", sql), form[1] if form else default, settings, database)


def _form(kind: str, body: bytes) -> dict[str, str]:
    """Read form fields, which is where clients put parameters that are too long for a URL."""
    boundary = re.search(r'boundary="?([^";]+)', kind)
    parts = body.split(b"--" + boundary[1].encode())[1:-1] if boundary else []
    fields = {}
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]*)"', head)
        if name is None or b"filename=" in head:
            raise Refused(501, "Code: 48. DB::Exception: External data is not read here.")
        fields[name[1].decode()] = value.removesuffix(b"\r\n").decode()
    return fields


def _unpack(body: bytes, encoding: str) -> bytes:
    if not body or encoding in ("", "identity"):
        return body
    unpack = _UNPACK.get(encoding)
    if unpack is None:
        known = ", ".join(_UNPACK)
        raise Refused(415, f"Content-Encoding '{encoding}' is not read here; {known} are.")
    return unpack(body)


def _lz4(body: bytes) -> bytes:
    import lz4.frame

    return bytes(lz4.frame.decompress(body))


def _zstd(body: bytes) -> bytes:
    from backports import zstd

    return bytes(zstd.decompress(body))


_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "lz4": _lz4,
    "zstd": _zstd,
}
