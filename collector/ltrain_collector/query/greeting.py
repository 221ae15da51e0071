"""The first words of clickhouse-go over HTTP, which Grafana speaks.

It asks for `revision()` and reads that one answer as its own revision of ClickHouse's protocol has
it, later ones as the revision it was told. chDB writes Native blocks of revision 0, so 0 is told.
"""

import re

REVISION = re.compile(r"\brevision\(\s*\)", re.I)
BLOCK_INFO = b"\x01\x00\x02\xff\xff\xff\xff\x00"
FLAGS_SINCE = 54454
"""Revisions from here on have a byte behind each column's type: no custom serialization."""


def asks(sql: str, form: str, revision: int) -> bool:
    """Say whether this is that question."""
    return revision > 0 and form == "Native" and REVISION.search(sql) is not None


def told(sql: str) -> str:
    """Give the question whose answer is told: revision 0."""
    return REVISION.sub("toUInt32(0)", sql)


def block(plain: bytes, revision: int) -> bytes:
    """Give a block of one row, of strings and 32-bit numbers, as `revision` has it."""
    columns, rows, at = plain[0], plain[1], 2
    made = [BLOCK_INFO, plain[:2]]
    for _ in range(columns):
        end = at + 1 + plain[at]  # the name, then the type
        kind = plain[end + 1 : end + 1 + plain[end]]
        end += 1 + plain[end]
        made.append(plain[at:end] + (b"\0" if revision >= FLAGS_SINCE else b""))
        at, end = end, end + (4 * rows if kind == b"UInt32" else 1 + plain[end])
        made.append(plain[at:end])
        at = end
    return b"".join(made)
