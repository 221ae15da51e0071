"""The libraries that ltrain knows, and who can instrument each, in order of preference.

Several instrumentors of one library would record every call several times, and some share one
entry-point name, so at most one is active a library: the first here that is installed and fits.
`LTRAIN_INSTRUMENTORS` changes the choice. `docs/instrumentors.md` is made from this table.
"""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instrumentor:
    maker: str
    """Its name in LTRAIN_INSTRUMENTORS."""
    distribution: str
    """On PyPI; where it is built in, the library's own versions that have it."""
    lacks: str
    """What it does not record, or does besides."""
    built_in: bool = False
    switch: str = ""
    """module:function that switches a built-in one on; '' where it is on by itself."""
    needless: tuple[str, ...] = ()
    """Packages that it says it instruments and does without."""


@dataclass(frozen=True, slots=True)
class Library:
    name: str
    distribution: str
    """On PyPI; '' where it is Python's own."""
    targets: tuple[str, ...]
    """Modules: when the agent imports one of them, the instrumentor loads. None: at the start."""
    instrumentors: tuple[Instrumentor, ...]
    proof: str = ""
    """A module that is loaded then, too, where many programs have one of the target's name."""
    entry: str = ""
    """Name of the entry point, where one distribution instruments several libraries."""
    extra: str = ""
    """The extra of ltrain that brings the first instrumentor."""
    needed: bool = True
    """Whether calls stay unseen without: then its absence is worth a warning."""

    @property
    def imported(self) -> bool:
        """Whether the agent has imported it."""
        there = any(name in sys.modules for name in self.targets)
        return there and (not self.proof or self.proof in sys.modules)


TRACELOOP, OPENINFERENCE, OFFICIAL, BUILT_IN = (
    "traceloop",
    "openinference",
    "opentelemetry",
    "built-in",
)

_NO_STREAM = "the span of an abandoned stream; token ids"
_NO_IDS = "token ids"
_ALONE = "-"

LIBRARIES = (
    Library(
        "openai",
        "openai",
        ("openai.resources",),  # on first use: with all that they import it is half a second
        (
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-openai", _NO_STREAM),
            Instrumentor(
                OPENINFERENCE,
                "openinference-instrumentation-openai",
                "finish reason and response id as attributes: both are in the raw response",
            ),
            Instrumentor(OFFICIAL, "opentelemetry-instrumentation-genai-openai", _NO_IDS),
            Instrumentor(
                "opentelemetry-v2",
                "opentelemetry-instrumentation-openai-v2",
                "fails with openai 3 unless httpx is there, and with util-genai from 1.0 on",
            ),
        ),
        extra="openai",
    ),
    Library(
        "langchain",
        "langchain-core",
        ("langchain_core",),
        (
            Instrumentor(
                OPENINFERENCE,
                "openinference-instrumentation-langchain",
                "the response id of streams; a current span, which ltrain's bridge adds",
            ),
            Instrumentor(
                OFFICIAL,
                "opentelemetry-instrumentation-genai-langchain",
                "graph state; softly failed tools; the response id of streams",
            ),
            Instrumentor(
                TRACELOOP,
                "opentelemetry-instrumentation-langchain",
                "the response id of streams; an agent has a trace of its own",
            ),
        ),
        extra="langchain",
    ),
    Library(
        "openai-agents",
        "openai-agents",
        ("agents",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-openai-agents", _NO_IDS),
            Instrumentor(
                OFFICIAL,
                "opentelemetry-instrumentation-genai-openai-agents",
                "leaves the SDK's own exporter to api.openai.com on",
            ),
            Instrumentor(
                TRACELOOP,
                "opentelemetry-instrumentation-openai-agents",
                "leaves the SDK's own exporter to api.openai.com on",
            ),
            Instrumentor(
                "opentelemetry-v2",
                "opentelemetry-instrumentation-openai-agents-v2",
                "bare spans; it shares its module with traceloop's: install one of the two",
            ),
        ),
        proof="agents.tracing",
        extra="openai-agents",
    ),
    Library(
        "autogen",
        "autogen-agentchat",
        ("autogen_agentchat",),
        (
            Instrumentor(
                OPENINFERENCE,
                "openinference-instrumentation-autogen-agentchat",
                "one trace a run: autogen's own spans start several",
            ),
        ),
        extra="autogen",
    ),
    Library(
        "ag2",
        "ag2",
        ("autogen",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-ag2", _NO_IDS),
            Instrumentor(
                "openinference-old", "openinference-instrumentation-autogen", "AG2 from 1.0 on"
            ),
        ),
    ),
    Library(
        "pydantic-ai",
        "pydantic-ai-slim",
        ("pydantic_ai",),
        (
            Instrumentor(
                BUILT_IN,
                "pydantic-ai-slim",
                "silent until `Agent.instrument_all()`, which ltrain calls",
                built_in=True,
                switch="ltrain_instrument.pydantic_ai:instrument",
            ),
        ),
    ),
    Library(
        "smolagents",
        "smolagents",
        ("smolagents",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-smolagents", _NO_IDS),
            Instrumentor(OFFICIAL, "opentelemetry-instrumentation-genai-smolagents", _NO_IDS),
        ),
        extra="smolagents",
    ),
    Library(
        "crewai",
        "crewai",
        ("crewai",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-crewai", _NO_IDS),
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-crewai", _NO_IDS),
        ),
        extra="crewai",
    ),
    Library(
        "llama-index",
        "llama-index-core",
        ("llama_index.core",),
        (
            Instrumentor(
                OPENINFERENCE,
                "openinference-instrumentation-llama-index",
                _NO_IDS,
                needless=("llama-index-multi-modal-llms-openai",),
            ),
            Instrumentor(OFFICIAL, "opentelemetry-instrumentation-genai-llama-index", _NO_IDS),
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-llamaindex", _NO_IDS),
        ),
        extra="llama-index",
    ),
    Library(
        "litellm",
        "litellm",
        ("litellm",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-litellm", _NO_IDS),
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-litellm", _NO_IDS),
        ),
        needed=False,  # crewai and openai-agents import it without using it
        extra="litellm",
    ),
    Library(
        "anthropic",
        "anthropic",
        ("anthropic",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-anthropic", _NO_IDS),
            Instrumentor(OFFICIAL, "opentelemetry-instrumentation-genai-anthropic", _NO_IDS),
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-anthropic", _NO_IDS),
        ),
        needed=False,  # frameworks import it without using it
    ),
    Library(
        "google-genai",
        "google-genai",
        ("google.genai",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-google-genai", _NO_IDS),
            Instrumentor(OFFICIAL, "opentelemetry-instrumentation-google-genai", _NO_IDS),
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-google-generativeai", _NO_IDS),
        ),
        needed=False,  # frameworks import it without using it
    ),
    Library(
        "mcp",
        "mcp",
        ("mcp",),
        (
            Instrumentor(
                BUILT_IN,
                "mcp>=2.3",
                "content: ltrain adds a span, with it, to each tool call of a client",
                built_in=True,
            ),
            Instrumentor(
                OPENINFERENCE,
                "openinference-instrumentation-mcp",
                "spans: it only carries the trace to the server",
            ),
            Instrumentor(
                TRACELOOP, "opentelemetry-instrumentation-mcp", "fails from mcp 2 on (0.62.4)"
            ),
        ),
        needed=False,
    ),
    *(
        Library(
            name,
            library,
            targets,
            (Instrumentor(OFFICIAL, f"opentelemetry-instrumentation-{package}", _ALONE),),
            entry=name,
            needed=False,
        )
        for name, library, targets, package in (
            ("httpx", "httpx", ("httpx",), "httpx"),
            ("httpx2", "httpx2", ("httpx2",), "httpx"),
            ("aiohttp-client", "aiohttp", ("aiohttp",), "aiohttp-client"),
            ("requests", "requests", ("requests",), "requests"),
            ("urllib3", "urllib3", ("urllib3",), "urllib3"),
            ("threading", "", (), "threading"),
        )
    ),
)
