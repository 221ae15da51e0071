"""Servers whose traces `ltrain import` reads, through their documented APIs."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.sources.servers.address import Address, is_address
    from ltrain_collector.sources.servers.langfuse import open_langfuse
    from ltrain_collector.sources.servers.page import Page, Server, Window
    from ltrain_collector.sources.servers.phoenix import open_phoenix
    from ltrain_collector.sources.servers.registry import open_server

open_face(__name__)
