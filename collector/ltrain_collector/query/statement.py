"""Parse requests of ClickHouse's HTTP interface: URL, headers and body."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from ltrain_collector.errors import HttpError
from ltrain_collector.http import RequestBuffer
from ltrain_collector.query.compression import decompress_blocks, decompress_body
from ltrain_collector.query.limits import Limits

TRANSPORT_PARAMETERS = {
    "buffer_size",
    "client_protocol_version",
    "compress",
    "database",
    "decompress",
    "default_format",
    "enable_http_compression",
    "http_headers_progress_interval_ms",
    "password",
    "query",
    "query_id",
    "send_progress_in_http_headers",
    "session_id",
    "session_timeout",
    "user",
    "wait_end_of_query",
}
"""URL parameters of the transport; all others are settings or query parameters."""

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
"""An insert followed by rows: only names and settings, so it can contain no other statement."""
MAX_INSERT_HEAD = 1 << 20
"""Bytes within which the rows of an insert must start."""

FORMAT = re.compile(r"\bFORMAT\s+(\w+)[\s;]*$|[\s;]+$", re.IGNORECASE)
"""The FORMAT clause or the semicolons at the end of a statement."""
FORMAT_TAIL = 256
"""Characters at the end of a statement in which FORMAT is searched; ClickHouse's parser finds an
earlier one."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its body."""

    method: str
    fields: Mapping[str, str]
    """Parameters of the URL."""
    headers: Mapping[str, str]
    limit: int
    """Size limit of the body, compressed or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One query, or one insert where `rows` is not None."""

    sql: str
    """The statement without FORMAT; of an insert, the part before FORMAT."""
    form: str
    settings: Mapping[str, str]
    database: str
    """'' if the request names none."""
    rows: bytes | None
    read_only: bool
    """Whether the HTTP method allows no changes."""
    query_id: str
    revision: int
    """The client's revision of ClickHouse's native protocol; 0 if it names none."""


def url_parameters(url: str) -> dict[str, str]:
    """Parse the parameters of a URL."""
    return dict(parse_qsl(url, keep_blank_values=True))


def parse_request(request: Request, buffer: RequestBuffer, limits: Limits) -> Statement:
    """Parse a request; a body of many MiB takes a second."""
    fields, headers, body = request.fields, request.headers, buffer.body()
    kind = headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        fields = {**fields, **_form_fields(kind, body)}
        body = b""
    if fields.get("compress") == "1":
        raise HttpError(
            501,
            "Code: 48. DB::Exception: Responses in ClickHouse's own compressed blocks "
            "(compress=1) are not supported; send Accept-Encoding: gzip, zstd or lz4. "
            "(NOT_IMPLEMENTED)",
        )
    body = decompress_body(body, headers.get("content-encoding", ""), request.limit, buffer.grow)
    if fields.get("decompress") == "1":
        body = decompress_blocks(body, request.limit, buffer.grow)
    settings = {name: value for name, value in fields.items() if name not in TRANSPORT_PARAMETERS}
    query = fields.get("query", "").encode()
    default = fields.get("default_format") or headers.get("x-clickhouse-format", "TabSeparated")
    if not re.fullmatch(r"\w+", default):
        raise HttpError(404, "Code: 73. DB::Exception: Unknown format. (UNKNOWN_FORMAT)")
    if insert := INSERT.match(query or body, 0, MAX_INSERT_HEAD):
        rows = query[insert.end() :] + body if query else body[insert.end() :]
        sql, form = insert[1], insert[2].decode()
    else:
        rows = None
        sql, form = b"\n".join(part for part in (query, body) if part), default
        limits.check_length(sql)
    text = _text(sql)
    if rows is None:
        text, form = _without_format(text, form)
    return Statement(
        sql=text,
        form=form,
        settings=settings,
        database=fields.get("database", ""),
        rows=rows,
        read_only=request.method != "POST",
        query_id=fields.get("query_id") or str(uuid.uuid4()),
        revision=_parse_integer(fields.get("client_protocol_version", "")),
    )


def _without_format(sql: str, default: str) -> tuple[str, str]:
    """Return a statement without its FORMAT clause, and the format."""
    end = FORMAT.search(sql, max(len(sql) - FORMAT_TAIL, 0))
    return (sql[: end.start()], end[1] or default) if end else (sql, default)


def _parse_integer(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _text(sql: bytes) -> str:
    try:
        return sql.decode()
    except UnicodeDecodeError as error:
        raise HttpError(
            400, "Code: 62. DB::Exception: The query is not UTF-8 text. (SYNTAX_ERROR)"
        ) from error


def _form_fields(kind: str, body: bytes) -> dict[str, str]:
    """Parse form fields, in which clients send parameters that are too long for a URL."""
    boundary = re.search(r'boundary="?([^";]+)', kind)
    parts = body.split(b"--" + boundary[1].encode())[1:-1] if boundary else []
    fields = {}
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]*)"', head)
        if name is None or b"filename=" in head:
            raise HttpError(
                501,
                "Code: 48. DB::Exception: External data (files in a form) is not supported; insert "
                "it into a table. (NOT_IMPLEMENTED)",
            )
        fields[name[1].decode()] = _text(value.removesuffix(b"\r\n"))
    return fields
