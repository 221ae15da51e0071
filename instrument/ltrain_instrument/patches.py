"""The changes of an agent's process by ltrain: a row for each patch, with the reason.

Rules: code that patches asks `is_enabled` of its row first, and changes nothing else of the
process. The patch of a framework is in its record, in `instrumentors/libraries.py`.
`docs/process.md` is generated from both.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ltrain_instrument.settings import DISABLED_PATCHES

ALL = "*"
"""The name in LTRAIN_DISABLED_PATCHES that stands for every patch."""


@dataclass(frozen=True, slots=True)
class Patch:
    name: str
    """Its name in LTRAIN_DISABLED_PATCHES."""
    change: str
    """The changed behaviour."""
    reason: str
    """The behaviour without it."""
    targets: tuple[str, ...] = ()
    """The functions that it replaces or wraps: module:attribute."""
    adds: str = ""
    """The addition to the process, if it replaces no function."""

    def is_enabled(self, environ: Mapping[str, str] | None = None) -> bool:
        """Return whether LTRAIN_DISABLED_PATCHES leaves the patch on."""
        return not {ALL, self.name}.intersection(DISABLED_PATCHES.read(environ))


def is_sdk_disabled() -> bool:
    """Return whether OTEL_SDK_DISABLED switches everything off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def methods(module: str, owner: str, names: str) -> tuple[str, ...]:
    """Return the targets of methods of a class, whose names are separated by spaces."""
    return tuple(f"{module}:{owner}.{name}" for name in names.split())


SIGNALS = Patch(
    "signals",
    "SIGTERM and SIGHUP, where their action is the default one, first end and send the spans, then "
    "end the process by the same signal. Both functions show and accept the default action as "
    "before. Handlers of the agent stay.",
    "Without it, spans that are open when the process is terminated are lost, and no report tells "
    "how many there were.",
    ("signal:signal", "signal:getsignal"),
)
EXIT = Patch(
    "exit",
    "Ends and sends the spans, for at most 2 seconds, then exits with the same status. Forked "
    "children of `multiprocessing` end with it too.",
    "Without it, spans that are open at `os._exit` are lost, and no report tells how many.",
    ("os:_exit",),
)
EXEC = Patch(
    "exec",
    "Ends and sends the spans, and gives trace and identity to the new program. The other "
    "functions `os.exec*` call these two.",
    "Without it, spans that are open when another program replaces this one are lost, and its own "
    "spans are in another trace without an identity.",
    ("os:execve", "os:execv"),
)
ATEXIT = Patch(
    "atexit",
    "Ends and sends the spans when the interpreter exits, for at most 1.5 seconds.",
    "Without it, spans that are open at the end are lost, and no report tells how many. Ended "
    "spans are on disk, and the next process sends those that are left.",
    adds="a callback of `atexit`",
)
SUBPROCESS = Patch(
    "subprocess",
    "Adds trace, baggage, identity and the absolute LTRAIN_HOME to the environment of the child. "
    "Variables that the agent sets for the child stay; `os.environ` does not change.",
    "Without it, spans of child processes do not belong to the rollout that started them.",
    (
        "subprocess:Popen.__init__",
        "asyncio.subprocess:create_subprocess_exec",
        "asyncio.subprocess:create_subprocess_shell",
        "asyncio:create_subprocess_exec",
        "asyncio:create_subprocess_shell",
    ),
)
MULTIPROCESSING = Patch(
    "multiprocessing",
    "Runs the function of the child or pool worker in the context of the caller; a pool worker "
    "reports its spans after each function.",
    "Without it, spans of such work do not belong to the rollout that submitted it.",
    (
        *methods("multiprocessing.process", "BaseProcess", "start _bootstrap"),
        *methods("multiprocessing.pool", "Pool", "apply_async _map_async imap imap_unordered"),
        "concurrent.futures.process:ProcessPoolExecutor.submit",
    ),
)
MCP_SERVERS = Patch(
    "mcp-servers",
    "Starts a server whose command belongs to this Python environment with "
    "`opentelemetry-instrument`'s PYTHONPATH.",
    "Without it, MCP servers leave no spans: the client passes only seven variables to them.",
    ("mcp.client.stdio:stdio_client",),
)
TRACER_PROVIDER = Patch(
    "tracer-provider",
    "Accepts a provider that the agent sets after ltrain, and passes its spans to ltrain too.",
    "Without it, OpenTelemetry refuses that provider with a warning, and the agent's exporters get "
    "no spans.",
    ("opentelemetry.trace:set_tracer_provider",),
)
LOG_FILTERS = Patch(
    "log-filters",
    "Hides warnings about instrumentors that ltrain skips on purpose, and, while the process "
    "exits, about spans that ltrain has ended for their owners.",
    "Without it, these warnings, which need no action, are on the agent's stderr.",
    adds="filters of the loggers `opentelemetry.instrumentation.auto_instrumentation._load` and "
    "`opentelemetry.sdk.trace`",
)
OPENAI_METHODS = (
    *methods("openai.resources.chat.completions.completions", "Completions", "create parse"),
    *methods("openai.resources.chat.completions.completions", "AsyncCompletions", "create parse"),
    *methods("openai.resources.completions", "Completions", "create"),
    *methods("openai.resources.completions", "AsyncCompletions", "create"),
    *methods("openai.resources.responses.responses", "Responses", "create parse"),
    *methods("openai.resources.responses.responses", "AsyncResponses", "create parse"),
    *methods("openai.resources.embeddings", "Embeddings", "create"),
    *methods("openai.resources.embeddings", "AsyncEmbeddings", "create"),
)
"""The methods of OpenAI's client that call a model."""
OPENAI = Patch(
    "openai",
    "A call of the client is a child of the LangChain run around it. Its HTTP requests carry "
    "`traceparent`, and get a span only if they fail. Placeholders of unset arguments, which "
    "instrumentors log, are not passed on.",
    "Without it, the gateway's spans are not below the agent's calls, and calls of a LangChain "
    "agent start traces of their own.",
    (
        *OPENAI_METHODS,
        "httpx:HTTPTransport.handle_request",
        "httpx:AsyncHTTPTransport.handle_async_request",
        "httpx2:HTTPTransport.handle_request",
        "httpx2:AsyncHTTPTransport.handle_async_request",
    ),
)
LANGCHAIN = Patch(
    "langchain",
    "The run of a chat model is the current span while the model is called or its stream is "
    "opened, so the client below it records no second span of the call.",
    "Without it, a call through LangChain and the client is recorded twice, in two traces.",
    (
        *methods(
            "langchain_core.language_models.chat_models",
            "BaseChatModel",
            "_generate_with_cache _agenerate_with_cache stream astream _iter_v2_events "
            "_aiter_v2_events",
        ),
        "langchain_core.callbacks.manager:CallbackManager.on_chat_model_start",
        "langchain_core.callbacks.manager:AsyncCallbackManager.on_chat_model_start",
    ),
)
LANGCHAIN_OPENAI = Patch(
    "langchain-openai",
    "Records the reasoning of a response on the span of the current run.",
    "Without it, reasoning is lost: LangChain's OpenAI models discard it.",
    (
        "langchain_openai.chat_models.base:_convert_dict_to_message",
        "langchain_openai.chat_models.base:_convert_delta_to_message_chunk",
    ),
)
_TRACELOOP_OPENAI = "opentelemetry.instrumentation.openai"
TRACELOOP = Patch(
    "traceloop",
    "Corrects what traceloop's instrumentor of `openai` records: ids of tool calls, reasoning and "
    "its token count. It starts no event loop per call, and pydantic prints no warnings.",
    "Without it, tool results do not match their calls in responses, and streams have no count of "
    "reasoning tokens.",
    (
        f"{_TRACELOOP_OPENAI}.shared.chat_wrappers:model_as_dict",
        f"{_TRACELOOP_OPENAI}.shared.chat_wrappers:run_async",
        f"{_TRACELOOP_OPENAI}.shared.chat_wrappers:_set_response_attributes",
        f"{_TRACELOOP_OPENAI}.shared.completion_wrappers:model_as_dict",
        f"{_TRACELOOP_OPENAI}.shared.completion_wrappers:_set_response_attributes",
        f"{_TRACELOOP_OPENAI}.v1.responses_wrappers:model_as_dict",
        f"{_TRACELOOP_OPENAI}.v1.responses_wrappers:_set_responses_json_messages",
    ),
)
_TOKENS = (
    "Requests below LTRAIN_POLICY_URLS request token ids and log-probabilities too, and are "
    "recorded; the agent sees the response that it requested. Without that setting: nothing."
)
_NO_TOKENS = "Without it, calls through this library have token ids only at the gateway."
HTTPX = Patch(
    "httpx",
    _TOKENS,
    _NO_TOKENS,
    tuple(
        f"{library}:{client}._send_single_request"
        for library in ("httpx", "httpx2")
        for client in ("Client", "AsyncClient")
    ),
)
AIOHTTP = Patch("aiohttp", _TOKENS, _NO_TOKENS, ("aiohttp:ClientSession._request",))
REQUESTS = Patch("requests", _TOKENS, _NO_TOKENS, ("requests.adapters:HTTPAdapter.send",))
WORKER_EXIT = Patch(
    "worker-exit",
    "Only in workers of `ltrain rollout` and `ltrain run`, which run many attempts: a call that "
    "ends the process first reports the attempt that makes it.",
    "Without it, every attempt in that process is suspected, and each is tried again in a process "
    "of its own.",
    ("os:_exit", "os:abort", "os:kill", "os:killpg", "signal:raise_signal", "signal:pthread_kill"),
)

PROCESS_PATCHES = (
    SIGNALS,
    EXIT,
    EXEC,
    ATEXIT,
    SUBPROCESS,
    MULTIPROCESSING,
    MCP_SERVERS,
    TRACER_PROVIDER,
    LOG_FILTERS,
    OPENAI,
    LANGCHAIN,
    LANGCHAIN_OPENAI,
    TRACELOOP,
    HTTPX,
    AIOHTTP,
    REQUESTS,
    WORKER_EXIT,
)
"""The patches that do not belong to a record in `instrumentors/libraries.py`."""
