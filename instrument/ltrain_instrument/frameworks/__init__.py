"""Fixes for frameworks whose instrumentors miss or misplace spans: one module a framework."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_instrument.frameworks import (
        autogen,
        crewai,
        haystack,
        langchain_bridge,
        llama_index,
        mcp,
    )
    from ltrain_instrument.frameworks.langchain_bridge import innermost_span

open_face(__name__)
