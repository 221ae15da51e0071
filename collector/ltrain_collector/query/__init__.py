"""ClickHouse's HTTP interface over the store: parsing, access, limits, sessions and execution."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.query.clickhouse_http import ClickHouseHttp
    from ltrain_collector.query.limits import RoleLimits

open_face(__name__)
