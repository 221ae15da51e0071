"""Which of ClickHouse's formats are given in parts, and how."""

import re
from collections.abc import Iterator
from typing import Any

READS = re.compile(
    r"\s*+(?:(?>/\*.*?\*/)\s*+|--[^\n]*+\n\s*+)*+\(*+\s*+(?:SELECT|WITH)\b", re.I | re.S
)
"""What gives rows and may be streamed. It never goes back over a comment: forty of them would take
a minute, with every other thread waiting."""

STREAMED = {
    *("CSV", "JSONEachRow", "JSONLines", "NDJSON", "Native", "RowBinary"),
    *("TabSeparated", "TSV", "TabSeparatedRaw", "TSVRaw"),
    *("JSONCompactEachRow", "JSONStringsEachRow", "JSONCompactStringsEachRow"),
}
"""Formats whose parts, one after another, are the whole."""

HEADED = {
    f"{name}{header}": lines
    for name in ("CSV", "TabSeparated", "TSV", "JSONCompactEachRow", "JSONCompactStringsEachRow")
    for header, lines in (("WithNames", 1), ("WithNamesAndTypes", 2))
}
"""Formats whose every part begins with the same lines, and how many: the first part's count."""


def in_parts(form: str) -> bool:
    """Say whether answers in this format are given as they are made, in bounded memory."""
    return form in STREAMED or form in HEADED


def parts(connection: Any, sql: str, form: str, whole: bool = False) -> Iterator[bytes]:
    """Run `sql` and give the result in `form`, in parts where the format allows it.

    Args:
        whole: a setting makes the format one that has a beginning and an end.
    """
    if whole or not in_parts(form) or not READS.match(sql):
        yield connection.query(sql, form).bytes() or b""
        return
    header: bytes | None = None
    with connection.send_query(sql, form) as stream:
        for one in stream:
            part = one.bytes()
            if form in STREAMED:
                yield part
            elif header is None:
                header = _lines(part, HEADED[form], quoted=form.startswith("CSV"))
                yield part
            else:
                yield part.removeprefix(header)


def _lines(part: bytes, count: int, quoted: bool) -> bytes:
    """Give the first lines; where values are quoted, a line break between quotes ends none."""
    end = 0
    while count:
        found = part.find(b"\n", end)
        if found < 0:
            return part
        end = found + 1
        if not quoted or part[:end].count(b'"') % 2 == 0:
            count -= 1
    return part[:end]
