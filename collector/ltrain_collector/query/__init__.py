"""ClickHouse's HTTP interface over the store: parsing, access, limits, sessions and execution."""

from ltrain_collector.query.clickhouse_http import ClickHouseHttp
from ltrain_collector.query.limits import RoleLimits

__all__ = ["ClickHouseHttp", "RoleLimits"]
