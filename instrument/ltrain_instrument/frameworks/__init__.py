"""Fixes for frameworks whose instrumentors miss or misplace spans: one module a framework."""

from ltrain_instrument.frameworks import (
    autogen,
    crewai,
    haystack,
    langchain_bridge,
    llama_index,
    mcp,
)
from ltrain_instrument.frameworks.langchain_bridge import innermost_span

__all__ = [
    "autogen",
    "crewai",
    "haystack",
    "innermost_span",
    "langchain_bridge",
    "llama_index",
    "mcp",
]
