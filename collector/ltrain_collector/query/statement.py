"""What a ClickHouse-HTTP request asks for, read from its URL, headers and body."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from ltrain_collector.asgi import Refused
from ltrain_collector.ingest.budget import Arrival
from ltrain_collector.query.compression import blocks, unpack
from ltrain_collector.query.limits import Limits

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

NAME = r"(?:\w+|`[^`\\]+`|\"[^\"\\]+\")"
COLUMN = rf"\s*{NAME}(?:\.{NAME})*\s*"
VALUE = r"(?:-?[\w.]+|'[^'\\]*')"
SETTINGS = rf"\w+\s*=\s*{VALUE}(?:\s*,\s*\w+\s*=\s*{VALUE})*"
INSERT = re.compile(
    rf"\s*(?:/\*.*?\*/\s*)?(INSERT\s+INTO\s+(?:TABLE\s+)?{NAME}(?:\.{NAME})?\s*"
    rf"(?:\({COLUMN}(?:,{COLUMN})*\)\s*)?(?:SETTINGS\s+{SETTINGS}\s+)?)"
    r"FORMAT\s+(\w+)[ \t]*(?:\r?\n|;|$)".encode(),
    re.IGNORECASE | re.DOTALL,
)
"""An insert whose rows follow: names and settings only, so that nothing else runs with it."""
HEAD = 1 << 20
"""Bytes in which all of an insert before its rows must stand."""

FORMAT = re.compile(r"\bFORMAT\s+(\w+)[\s;]*$|[\s;]+$", re.IGNORECASE)
"""What ends a statement."""
TAIL = 256
"""Characters in which that is looked for; ClickHouse's own parser finds a FORMAT before them."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, but for its body."""

    method: str
    fields: Mapping[str, str]
    """Parameters of the URL."""
    headers: Mapping[str, str]
    limit: int
    """Bytes that the body may have, packed or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One query, or one insert where `rows` is not None."""

    sql: str
    """Without its FORMAT; of an insert all that is before it."""
    form: str
    settings: Mapping[str, str]
    database: str
    """'' where the request names none."""
    rows: bytes | None
    reading: bool
    """By its method the request changes nothing."""
    query_id: str
    revision: int
    """Of ClickHouse's own protocol, as the client speaks it; 0 where it does not say."""


def fields_of(url: str) -> dict[str, str]:
    """Read the URL's parameters."""
    return dict(parse_qsl(url, keep_blank_values=True))


def read(request: Request, arrival: Arrival, limits: Limits) -> Statement:
    """Read a request; a body of many MiB takes a second.

    Raises:
        Overloaded: when its body, once unpacked, has no place.
        QueryFailed: when its SQL is too long.
        Refused: when it uses what is not served here.
    """
    fields, headers, body = request.fields, request.headers, arrival.body()
    kind = headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        fields = {**fields, **_form(kind, body)}
        body = b""
    if fields.get("compress") == "1":
        raise Refused(
            501,
            "Code: 48. DB::Exception: Answers in ClickHouse's own compressed blocks (compress=1) "
            "are not made here; ask with Accept-Encoding: gzip, zstd or lz4. (NOT_IMPLEMENTED)",
        )
    body = unpack(body, headers.get("content-encoding", ""), request.limit, arrival.grow)
    if fields.get("decompress") == "1":
        body = blocks(body, request.limit, arrival.grow)
    settings = {name: value for name, value in fields.items() if name not in TRANSPORT}
    query = fields.get("query", "").encode()
    default = fields.get("default_format") or headers.get("x-clickhouse-format", "TabSeparated")
    if not re.fullmatch(r"\w+", default):
        raise Refused(404, "Code: 73. DB::Exception: Unknown format. (UNKNOWN_FORMAT)")
    if found := INSERT.match(query or body, 0, HEAD):
        rows = query[found.end() :] + body if query else body[found.end() :]
        sql, form = found[1], found[2].decode()
    else:
        rows = None
        sql, form = b"\n".join(part for part in (query, body) if part), default
        limits.check_text(sql)
    text = _text(sql)
    if rows is None:
        text, form = _without_format(text, form)
    return Statement(
        sql=text,
        form=form,
        settings=settings,
        database=fields.get("database") or headers.get("x-clickhouse-database", ""),
        rows=rows,
        reading=request.method != "POST",
        query_id=fields.get("query_id") or headers.get("x-clickhouse-query-id") or _new_id(),
        revision=_whole(fields.get("client_protocol_version", "")),
    )


def _without_format(sql: str, default: str) -> tuple[str, str]:
    """Return a statement without its FORMAT, and the format."""
    end = FORMAT.search(sql, max(len(sql) - TAIL, 0))
    return (sql[: end.start()], end[1] or default) if end else (sql, default)


def _new_id() -> str:
    return str(uuid.uuid4())


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _text(sql: bytes) -> str:
    try:
        return sql.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            400, "Code: 62. DB::Exception: The query is not UTF-8 text. (SYNTAX_ERROR)"
        ) from error


def _form(kind: str, body: bytes) -> dict[str, str]:
    """Read form fields, which is where clients put parameters that are too long for a URL."""
    boundary = re.search(r'boundary="?([^";]+)', kind)
    parts = body.split(b"--" + boundary[1].encode())[1:-1] if boundary else []
    fields = {}
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]*)"', head)
        if name is None or b"filename=" in head:
            raise Refused(
                501, "Code: 48. DB::Exception: External data is not read here. (NOT_IMPLEMENTED)"
            )
        fields[name[1].decode()] = _text(value.removesuffix(b"\r\n"))
    return fields
