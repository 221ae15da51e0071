"""The handshake of clickhouse-go over HTTP, which Grafana uses.

The client queries `revision()` and decodes this response in its own revision of ClickHouse's native
protocol, and later ones in the returned revision. chDB writes Native blocks of revision 0, so the
response is revision 0.
"""

import re

REVISION = re.compile(r"\brevision\(\s*\)", re.I)
BLOCK_INFO = b"\x01\x00\x02\xff\xff\xff\xff\x00"
FLAGS_SINCE = 54454
"""First revision with a byte after each column's type, for custom serialization."""


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
