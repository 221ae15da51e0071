"""Fixes for frameworks whose instrumentors miss or misplace spans: one module a framework."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_instrument.frameworks import langchain_bridge
    from ltrain_instrument.frameworks.langchain_bridge import innermost_span

open_face(__name__)
