"""`ltrain run --from-clickhouse [URL]`: the store that a run without an agent reads."""

from typing import Any

import typer
from typer.core import TyperCommand

FROM_CLICKHOUSE = "--from-clickhouse"


class OptionalSource(TyperCommand):
    """A command whose --from-clickhouse has a URL or none: Typer has no such options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; the option without a URL has an empty one."""
        following = [*args[1:], ""]
        named = (
            f"{each}=" if each == FROM_CLICKHOUSE and "://" not in after else each
            for each, after in zip(args, following, strict=False)
        )
        return super().parse_args(ctx, list(named))


def named_store(url: str, store: str | None, *, online: bool) -> str:
    """Return the address of a ClickHouse, whose exporter's tables ltrain's views read from now on.

    Raises:
        BadParameter: `--store` is set, too, or the run is online.
        NoStore: the database has no table of the exporter.
        NotMigrated: the user may not create views.
    """
    if store is not None:
        raise typer.BadParameter(f"{FROM_CLICKHOUSE} URL and --store name a store. Use one.")
    if online:
        raise typer.BadParameter(
            f"An online run reads the store of its own rollouts. Add --once or --watch to train on "
            f"the traces of {FROM_CLICKHOUSE} URL, or set LTRAIN_STORE."
        )
    from ltrain_collector.store import Store

    with Store.open(url, create=False) as opened:
        opened.read_exporter_tables()
    return url
