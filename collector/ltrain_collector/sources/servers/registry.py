"""The platforms whose servers are read, by the scheme of an address.

A new one is a module with a class of the protocol `Server`, and its place in `SERVERS`.
"""

from difflib import get_close_matches

from ltrain_collector.errors import BadSource
from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.clickhouse import ClickHouseServer
from ltrain_collector.sources.servers.jaeger import JaegerServer
from ltrain_collector.sources.servers.langfuse import LangfuseServer
from ltrain_collector.sources.servers.langsmith import LangSmithServer
from ltrain_collector.sources.servers.logfire import LogfireServer
from ltrain_collector.sources.servers.mlflow import MlflowServer
from ltrain_collector.sources.servers.page import Server
from ltrain_collector.sources.servers.phoenix import PhoenixServer
from ltrain_collector.sources.servers.tempo import TempoServer

SERVERS: dict[str, type[Server]] = {
    "clickhouse": ClickHouseServer,
    "jaeger": JaegerServer,
    "langfuse": LangfuseServer,
    "langsmith": LangSmithServer,
    "logfire": LogfireServer,
    "mlflow": MlflowServer,
    "phoenix": PhoenixServer,
    "tempo": TempoServer,
}
LISTED = 20
"""Projects that an error lists."""


def open_server(source: str) -> tuple[Address, Server]:
    """Return the server of an address.

    Raises:
        BadSource: its platform is unknown, or it names no project or one that does not exist.
        SourceFailed: the server cannot be reached or refuses.
    """
    address = Address.parse(source)
    if address.kind not in SERVERS:
        near = get_close_matches(address.kind, SERVERS, n=1)
        known = ", ".join(f"{each}://" for each in SERVERS)
        meant = f"Did you mean {near[0]}://?" if near else f"These are read: {known}."
        raise BadSource(f"ltrain reads no traces from {address.kind}://. {meant}")
    server = SERVERS[address.kind](address)
    projects = server.projects()
    if address.project not in projects:
        named = f"has no project '{address.project}'" if address.project else "is no project"
        listed = ", ".join(projects[:LISTED]) + ", …" * (len(projects) > LISTED)
        raise BadSource(
            f"{source} {named}. Write {SERVERS[address.kind].example.rpartition('/')[0]}/PROJECT "
            f"with one of its projects: {listed or 'it has none'}."
        )
    return address, server
