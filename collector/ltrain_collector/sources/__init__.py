"""Records of other programs as OTLP: exports of platforms, sessions of coding agents, chats."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.sources.registry import FileReader, reader_of
    from ltrain_collector.sources.servers import (
        Address,
        Page,
        Server,
        Window,
        is_address,
        open_langfuse,
        open_phoenix,
        open_server,
    )
    from ltrain_collector.sources.spans import nanoseconds

open_face(__name__)
