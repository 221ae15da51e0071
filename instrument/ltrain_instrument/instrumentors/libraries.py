"""The libraries that ltrain knows, each with its instrumentors in order of preference.

Several instrumentors of one library would record every call several times, and some share an
entry-point name. So at most one per library is active: the first in this table that is installed
and usable. `LTRAIN_INSTRUMENTORS` changes the choice. `docs/instrumentors.md` is generated from
this table.
"""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instrumentor:
    provider: str
    """Its name in LTRAIN_INSTRUMENTORS."""
    distribution: str
    """Its distribution on PyPI; if it is built in, the versions of the library that have it."""
    limitations: str
    """What it does not record, or its side effects."""
    built_in: bool = False
    switch: str = ""
    """module:function that switches a built-in instrumentor on; '' if it is on by default."""
    unneeded_packages: tuple[str, ...] = ()
    """Packages that it declares as instrumented but does not need."""
    unneeded_modules: tuple[str, ...] = ()
    """Modules that it would import and does not need; their importer handles an ImportError."""


@dataclass(frozen=True, slots=True)
class Library:
    name: str
    distribution: str
    """Its distribution on PyPI; '' for a module of Python itself."""
    modules: tuple[str, ...]
    """When the agent imports one of these modules, the instrumentor loads; none: at process
    start."""
    instrumentors: tuple[Instrumentor, ...]
    marker_module: str = ""
    """A module that is also loaded then, if other programs may have a module of the same name."""
    entry: str = ""
    """Name of the entry point, if one distribution instruments several libraries."""
    extra: str = ""
    """The extra of ltrain that installs the first instrumentor."""
    required: bool = True
    """Whether calls are not recorded without an instrumentor; then a missing one causes a
    warning."""

    @property
    def is_imported(self) -> bool:
        """Return whether the agent has imported the library."""
        loaded = any(name in sys.modules for name in self.modules)
        return loaded and (not self.marker_module or self.marker_module in sys.modules)


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
        ("openai.resources",),  # imported on first use; loading costs half a second
        (
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-openai", _NO_STREAM),
            Instrumentor(
                OPENINFERENCE,
                "openinference-instrumentation-openai",
                "finish reason and response id as attributes (both are in the raw response)",
            ),
            Instrumentor(OFFICIAL, "opentelemetry-instrumentation-genai-openai", _NO_IDS),
            Instrumentor(
                "opentelemetry-v2",
                "opentelemetry-instrumentation-openai-v2",
                "fails with openai 3 unless httpx is installed, and with util-genai from 1.0 on",
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
                "the response id of streams; a current span, which ltrain's bridge sets",
            ),
            Instrumentor(
                OFFICIAL,
                "opentelemetry-instrumentation-genai-langchain",
                "graph state; tools that return an error; the response id of streams",
            ),
            Instrumentor(
                TRACELOOP,
                "opentelemetry-instrumentation-langchain",
                "the response id of streams; each agent starts a trace of its own",
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
                "does not switch off the SDK's own exporter to api.openai.com",
            ),
            Instrumentor(
                TRACELOOP,
                "opentelemetry-instrumentation-openai-agents",
                "does not switch off the SDK's own exporter to api.openai.com",
            ),
            Instrumentor(
                "opentelemetry-v2",
                "opentelemetry-instrumentation-openai-agents-v2",
                "bare spans; it shares its module with traceloop's: install one of the two",
            ),
        ),
        marker_module="agents.tracing",
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
                "one trace per run: autogen's own spans start several",
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
                "records only after `Agent.instrument_all()`, which ltrain calls",
                built_in=True,
                switch="ltrain_instrument.frameworks.built_in_telemetry:instrument_pydantic_ai",
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
                unneeded_packages=("llama-index-multi-modal-llms-openai",),
            ),
            Instrumentor(OFFICIAL, "opentelemetry-instrumentation-genai-llama-index", _NO_IDS),
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-llamaindex", _NO_IDS),
        ),
        extra="llama-index",
    ),
    Library(
        "google-adk",
        "google-adk",
        ("google.adk",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-google-adk", _NO_IDS),
            Instrumentor(BUILT_IN, "google-adk", _NO_IDS, built_in=True),
        ),
        extra="google-adk",
    ),
    Library(
        "agno",
        "agno",
        ("agno.agent",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-agno", _NO_IDS),
            Instrumentor(
                TRACELOOP,
                "opentelemetry-instrumentation-agno",
                "the calls of a stream are in traces of their own; failed tools look successful",
            ),
        ),
        extra="agno",
    ),
    Library(
        "strands-agents",
        "strands-agents",
        ("strands",),
        (Instrumentor(BUILT_IN, "strands-agents", _NO_IDS, built_in=True),),
    ),
    Library(
        "dspy",
        "dspy",
        ("dspy",),
        (Instrumentor(OPENINFERENCE, "openinference-instrumentation-dspy", _NO_IDS),),
        extra="dspy",
    ),
    Library(
        "semantic-kernel",
        "semantic-kernel",
        ("semantic_kernel",),
        (
            Instrumentor(
                BUILT_IN,
                "semantic-kernel",
                "records only where a variable switches it on, which ltrain does",
                built_in=True,
                switch="ltrain_instrument.frameworks.built_in_telemetry:instrument_semantic_kernel",
            ),
        ),
    ),
    Library(
        "haystack",
        "haystack-ai",
        ("haystack",),
        (
            Instrumentor(
                OPENINFERENCE,
                "openinference-instrumentation-haystack",
                "tools, and agents without a pipeline: ltrain adds spans for both",
            ),
            Instrumentor(
                TRACELOOP,
                "opentelemetry-instrumentation-haystack",
                "tools, and agents without a pipeline: ltrain adds spans for both",
            ),
        ),
        marker_module="haystack.core",
        extra="haystack",
    ),
    Library(
        "litellm",
        "litellm",
        ("litellm",),
        (
            Instrumentor(OPENINFERENCE, "openinference-instrumentation-litellm", _NO_IDS),
            Instrumentor(TRACELOOP, "opentelemetry-instrumentation-litellm", _NO_IDS),
        ),
        required=False,  # crewai and openai-agents import it without using it
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
        required=False,  # frameworks import it without using it
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
        required=False,  # frameworks import it without using it
    ),
    Library(
        "mcp",
        "mcp",
        ("mcp",),
        (
            Instrumentor(
                BUILT_IN,
                "mcp>=2.3",
                "content: ltrain adds a span with the content to each tool call of a client",
                built_in=True,
            ),
            Instrumentor(
                OPENINFERENCE,
                "openinference-instrumentation-mcp",
                "spans: it only propagates the trace to the server",
            ),
            Instrumentor(
                TRACELOOP, "opentelemetry-instrumentation-mcp", "fails from mcp 2 on (0.62.4)"
            ),
        ),
        required=False,
    ),
    *(
        Library(
            name,
            library,
            modules,
            (
                Instrumentor(
                    OFFICIAL,
                    f"opentelemetry-instrumentation-{package}",
                    _ALONE,
                    unneeded_modules=unneeded,
                ),
            ),
            entry=name,
            required=False,
        )
        for name, library, modules, package, unneeded in (
            ("httpx", "httpx", ("httpx",), "httpx", ()),
            # for httpx2 it imports httpx too, whose command line imports rich and click: 0.1 s
            ("httpx2", "httpx2", ("httpx2",), "httpx", ("httpx._main",)),
            ("aiohttp-client", "aiohttp", ("aiohttp",), "aiohttp-client", ()),
            ("requests", "requests", ("requests",), "requests", ()),
            ("urllib3", "urllib3", ("urllib3",), "urllib3", ()),
            ("threading", "", (), "threading", ()),
        )
    ),
)
