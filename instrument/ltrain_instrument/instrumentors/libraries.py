"""The libraries that ltrain knows, each with its instrumentors in order of preference.

Several instrumentors of one library would record every call several times, and some share an
entry-point name. So at most one per library is active: the first in this table that is installed
and usable. `LTRAIN_INSTRUMENTORS` changes the choice. `docs/instrumentors.md` is generated from
this table. A new framework is a record here, its extra in `pyproject.toml`, and a module in
`frameworks/` if it needs a patch.
"""

from ltrain_instrument import patches
from ltrain_instrument.instrumentors.library import Instrumentor, Library

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
        records=("openai",),
        failed_result=r"^Error[: ][\s\S]*(Please fix (your mistakes|the error and try again)\."
        r"|is not a valid tool, try one of \[.*\]\.)$",
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
        failed_result=r"^An error occurred while (running the tool|parsing tool arguments)\.",
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
        patch=patches.Patch(
            "autogen",
            "Marks tools that fail without an exception; without content, hides their arguments.",
            "Without it, such tools look successful, and their arguments are recorded even if "
            "content is switched off.",
            ("autogen_agentchat.agents._assistant_agent:AssistantAgent._execute_tool_call",),
        ),
        install_patch="ltrain_instrument.frameworks.autogen:patch_autogen",
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
        records=("openai",),
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
        records=("openai",),
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
        patch=patches.Patch(
            "crewai",
            "Records a span for an agent to which others delegate, and for awaited agents and "
            "crews.",
            "Without it, their work counts as that of the agent that delegated, or as separate "
            "traces.",
            (
                *patches.methods(
                    "crewai.agent.core", "Agent", "execute_task aexecute_task kickoff_async"
                ),
                "crewai.crew:Crew.akickoff",
            ),
        ),
        install_patch="ltrain_instrument.frameworks.crewai:patch_crewai",
        failed_result=r"^\s*(Error executing tool"
        r"|I encountered an error while trying to use the tool)",
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
        patch=patches.Patch(
            "llama-index",
            "The client's span of a stream is a child of the model's span.",
            "Without it, that span starts a trace of its own.",
            patches.methods(
                "llama_index.llms.openai.base",
                "OpenAI",
                "_stream_chat _astream_chat _stream_complete _astream_complete",
            ),
        ),
        install_patch="ltrain_instrument.frameworks.llama_index:patch_llama_index",
        failed_result=r"^(Encountered error|An error occurred while running the tool): ",
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
        patch=patches.Patch(
            "dspy",
            "Requests of dspy's own HTTP client carry `traceparent`.",
            "Without it, the gateway's spans are not below the agent's calls.",
            (
                "dspy._vendor.lm15.transports._sync:StdlibTransport.stream",
                "dspy._vendor.lm15.transports._async:StdlibAsyncTransport.stream",
            ),
        ),
        install_patch="ltrain_instrument.frameworks.dspy:patch_dspy",
        failed_result=r"^Execution error in ",
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
        patch=patches.Patch(
            "haystack",
            "Records a span for each run of an agent and for each of its tool calls.",
            "Without it, tools have no spans, and each call of an agent without a pipeline is a "
            "trace.",
            (
                *patches.methods("haystack.components.agents.agent", "Agent", "run run_async"),
                "haystack.components.agents.tool_calling:_create_tool_span",
            ),
        ),
        install_patch="ltrain_instrument.frameworks.haystack:patch_haystack",
        failed_result=r"^Failed to invoke Tool ",
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
        patch=patches.Patch(
            "mcp",
            "Records a span `tools/call NAME` with the arguments and the result of a client's tool "
            "call.",
            "Without it, no span has the content of tool calls: the SDK's own spans do not.",
            ("mcp.client.session:ClientSession.call_tool",),
        ),
        install_patch="ltrain_instrument.frameworks.mcp:patch_mcp",
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
PATCHES = (*patches.PROCESS_PATCHES, *(each.patch for each in LIBRARIES if each.patch))
"""Every patch, by the names in LTRAIN_DISABLED_PATCHES."""
