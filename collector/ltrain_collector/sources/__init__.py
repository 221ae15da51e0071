"""Records of other programs as OTLP: files of coding agents' sessions, and of chats."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.sources.registry import FileReader, reader_of

open_face(__name__)
