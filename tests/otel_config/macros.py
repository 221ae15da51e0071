"""A panel's query as ClickHouse gets it: variables filled in, macros of the data source expanded.

What each macro becomes is as `pkg/macros/macros.go` of grafana/clickhouse-datasource has it.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

SECONDS = 60
"""The interval that Grafana asks for."""


def expanded(
    sql: str, start: datetime, end: datetime, chosen: Mapping[str, Sequence[str] | None]
) -> str:
    """Return the query for a time range; None as a variable's choice stands for All."""
    since, until = (f"toDateTime({int(each.timestamp())})" for each in (start, end))

    def conditional(found: re.Match[str]) -> str:
        return "1=1" if chosen[found[2]] is None else found[1]

    sql = re.sub(r"\$__conditionalAll\((.*?), \$(\w+)\)", conditional, sql)
    sql = re.sub(r"\$__timeFilter\((\w+)\)", rf"\1 >= {since} AND \1 <= {until}", sql)
    interval = rf"toStartOfInterval(toDateTime(\1), INTERVAL {SECONDS} second)"
    sql = re.sub(r"\$__timeInterval\((\w+)\)", interval, sql)
    for name, values in chosen.items():
        quoted = ",".join("'" + value.replace("'", r"\'") + "'" for value in values or ())
        sql = sql.replace(f"${{{name}:singlequote}}", quoted)
    left = re.findall(r"\$\w+|\$\{[^}]*\}", sql)
    if left:
        raise ValueError(f"No macro or variable of this name: {left}")
    return sql
