"""Settings of all parts: one row per setting, read from the environment, else the default.

OpenTelemetry reads its own variables (`OTEL_*`), so they are not repeated here, except for the
endpoint, which the parts of ltrain share. `docs/settings.md` is generated from this table.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ltrain_instrument import addresses
from ltrain_instrument.addresses import find_address
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.setting_values import (
    limits,
    parse_base_urls,
    parse_conversations,
    parse_integer,
    parse_names,
    parse_optional_integer,
    parse_optional_path,
    parse_patterns,
    parse_positive,
    parse_providers,
)

T = TypeVar("T")

LENGTH_LIMITS = ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")
"""OpenTelemetry's own limits; an invalid one makes its SDK fail at import."""

COUNT_LIMITS = (
    *("OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
    *("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
    *("OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"),
)

_logger = logging.getLogger("ltrain.distro")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    name: str
    """The name of the environment variable."""
    read_as: Callable[[str], T]
    default: str
    """The value of an unset variable, as text; '' means "not set"."""
    doc: str
    """One sentence: what the setting decides, with its unit."""
    address: str = ""
    """The address of a running server of LTRAIN_HOME that replaces the default; '' if none does."""

    def read(self, environ: Mapping[str, str] | None = None) -> T:
        """Return the parsed value of the variable, else the announced address, else the default.

        Raises:
            BadSetting: when the text cannot be parsed.
        """
        environ = os.environ if environ is None else environ
        text = environ.get(self.name) or self.find(environ) or self.default
        try:
            return self.read_as(text)
        except BadSetting as error:
            raise BadSetting(f"{self.name}: {error}") from error
        except ValueError as error:
            raise BadSetting(
                f"{self.name}='{text}': {error}. {self.doc} "
                f"Unset it for the default '{self.default}'."
            ) from error

    def find(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the announced address of the server that the setting names, or ''."""
        return find_address(HOME.read(environ), self.address) if self.address else ""


_query_limits = limits("seconds", "memory", "rows", "disk", "statement", "parallel", "queued")
_ingest_limits = limits("minute", "records", "total", "request", "attributes", "events", "links")

HOME = Setting(
    "LTRAIN_HOME",
    Path,
    ".ltrain",
    "Folder that holds the store, policies, runs, the spool and datasets.",
)
SERVICES = "services"
"""The subfolder of LTRAIN_HOME for ltrain's own processes alone."""
SPOOL = "spool"
"""The subfolder of LTRAIN_HOME, and of SERVICES in it, where spans wait for the collector."""
SPOOL_LIMIT = Setting(
    "LTRAIN_SPOOL_LIMIT",
    parse_integer,
    "1024",
    "Maximum size in MiB of the folder `spool` in LTRAIN_HOME, where spans wait for the collector; "
    "`spool/refused` and `spool/damaged` have the same limit each. Spans beyond it are dropped and "
    "counted, with one warning.",
)
STORE = Setting(
    "LTRAIN_STORE",
    str,
    "",
    "The trace store: chdb:///dir, http://host:8123 or clickhouse://user:pass@host:8123/otel. "
    "Unset: the running `ltrain up` of LTRAIN_HOME, else http://127.0.0.1:8123 if a server answers "
    "there, else the folder `store` in LTRAIN_HOME.",
    addresses.STORE,
)
QUERY_LIMITS = Setting(
    "LTRAIN_QUERY_LIMITS",
    _query_limits,
    "seconds=300,memory=2048,rows=10000000000,disk=4096,statement=256,queued=32",
    "[Limits](clients.md#limits-of-queries) of keys of role `query`, and of queries without a key, "
    "at the ClickHouse port of `ltrain up`; what is not named keeps its default, 0 means no limit.",
)
ADMIN_LIMITS = Setting(
    "LTRAIN_ADMIN_LIMITS",
    _query_limits,
    "seconds=3600,memory=3072,rows=0,disk=0,statement=0,parallel=6,queued=256",
    "The same for keys of role `admin`, and for the store's owner.",
)
BOUND_LIMITS = Setting(
    "LTRAIN_BOUND_LIMITS",
    _ingest_limits,
    "minute=128,records=120000,total=4096,request=16,attributes=16384,events=4096,links=4096",
    "[Budget](collector.md#budgets-of-senders) of each key that is bound to a rollout; what is not "
    "named keeps its default, 0 means no limit. `minute`, `records` and `total` do not hold for "
    "the key of a run.",
)
INGEST_LIMITS = Setting(
    "LTRAIN_INGEST_LIMITS",
    _ingest_limits,
    "minute=0,records=0,total=0,request=0,attributes=0,events=0,links=0",
    "The same for each key of role `ingest`, and for all senders without a key together.",
)
OTLP_ENDPOINT = Setting(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    str,
    "http://127.0.0.1:4318",
    "Base URL of the collector that receives spans, OTLP over HTTP; unset: that of the running "
    "`ltrain up` of LTRAIN_HOME, else the default.",
    addresses.OTLP,
)
GATEWAY = Setting(
    "LTRAIN_GATEWAY",
    str,
    "http://127.0.0.1:8000",
    "Base URL at which agents reach the gateway; unset: that of the running `ltrain serve` of "
    "LTRAIN_HOME, else the port that its `ltrain up --port-base` names, else the default.",
    addresses.GATEWAY,
)
STORE_SECRET = Setting(
    "LTRAIN_STORE_SECRET",
    str,
    "",
    "Secret that signs the keys of attempts, workers and ltrain's own processes, for the store and "
    "the gateway; unset: the file `<folder>.secret` beside the store's folder, created on first "
    "use.",
)
OLD_GATEWAY_SECRET = "LTRAIN_GATEWAY_SECRET"
"""The variable in which the gateway's secret was, before store and gateway shared one."""
REWARD_KEY = Setting(
    "LTRAIN_REWARD_KEY",
    str,
    "",
    "Key that is sent to a reward service, as `Authorization: Bearer KEY`; unset: none is sent.",
)
WORKER_KEY = Setting(
    "LTRAIN_WORKER_KEY",
    str,
    "",
    "Key with which `ltrain worker` takes attempts from a gateway; `ltrain worker-key` prints one.",
)
FORWARD_LIMIT = Setting(
    "LTRAIN_FORWARD_LIMIT",
    parse_positive,
    "1024",
    "Maximum size in MiB of what waits on disk for one target of `ltrain up --forward`, for each "
    "signal. Requests beyond it are stored, and the target misses them.",
)
FORWARD_HEADERS = Setting(
    "LTRAIN_FORWARD_HEADERS",
    str,
    "",
    "Headers of the requests to `ltrain up --forward URL`: name=value pairs, separated by commas. "
    "The headers of `--forward NAME=URL` are in `LTRAIN_FORWARD_NAME_HEADERS`.",
)
_FORWARD_HEADERS = re.compile(r"LTRAIN_FORWARD_(?:\w+_)?HEADERS")


def secret_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables with secrets, which only ltrain's own processes get."""
    forward = (name for name in environ if _FORWARD_HEADERS.fullmatch(name))
    return (*SECRETS, *forward)


SECRETS = (*(STORE.name, STORE_SECRET.name, OLD_GATEWAY_SECRET, REWARD_KEY.name), WORKER_KEY.name)
"""Variables that hold a secret or a key that can read, besides those of targets' headers."""
ALLOW_HOSTS = Setting(
    "LTRAIN_ALLOW_HOSTS",
    parse_names,
    "",
    "Host names that the collector and the gateway accept beside 127.0.0.1 and localhost, "
    "separated by commas. A request with another `Host` header is refused.",
)
REQUEST_LIMIT = Setting(
    "LTRAIN_REQUEST_LIMIT",
    parse_positive,
    "32",
    "Maximum size in MiB of a request to the gateway. A larger one gets status 413.",
)
REQUEST_ITEMS = Setting(
    "LTRAIN_REQUEST_ITEMS",
    parse_positive,
    "8192",
    "Maximum number of messages, parts, tools and tool calls of a request to the gateway, counted "
    "together. A request with more gets status 413.",
)
POLICY_URLS = Setting(
    "LTRAIN_POLICY_URLS",
    parse_base_urls,
    "",
    "Base URLs of policy servers that agents call without the gateway, written as the agent writes "
    "them, separated by commas. ltrain requests token ids for calls below these URLs and records "
    "them.",
)
CONVERSATIONS = Setting(
    "LTRAIN_CONVERSATIONS",
    parse_conversations,
    "content",
    "How model calls without a parent, a session and a rollout become conversations: `content`, a "
    "call that repeats an earlier call and its answer continues it; `process`, all spans of a "
    "process are one trace, below a span that ends with it; `off`, each stands alone.",
)
SESSION_FIELDS = Setting(
    "LTRAIN_SESSION_FIELDS",
    parse_names,
    "",
    "Headers of a request to the gateway, or fields of its body such as `metadata.chat`, that name "
    "its session, separated by commas; they are read before [those that it "
    "knows](gateway.md#conversations).",
)
CONVERSATION_IDLE = Setting(
    "LTRAIN_CONVERSATION_IDLE",
    parse_positive,
    "14400",
    "Seconds without a call after which the gateway ends a conversation; a later call begins "
    "another one. Give a recipe's `source.idle_timeout` the same value or a larger one.",
)
POLICY_VERSION = Setting(
    "LTRAIN_POLICY_VERSION",
    parse_optional_integer,
    "",
    "Version of the policy that the servers of LTRAIN_POLICY_URLS serve; unset: unknown.",
)
VLLM_PYTHON = Setting(
    "LTRAIN_VLLM_PYTHON",
    parse_optional_path,
    ".venv-vllm/bin/python",
    "Python interpreter of vLLM's environment; unset: the folder `.venv-vllm` beside ltrain's own "
    "environment, else in the current folder.",
)
LEARNER_BACKEND = Setting(
    "LTRAIN_LEARNER_BACKEND",
    str,
    "",
    "The library that trains, in place of the recipe's `train.backend`: its name, or a Python "
    "module with the functions of `ltrain_train.learner.backend.Backend`.",
)
TRL = Setting(
    "LTRAIN_TRL",
    parse_optional_path,
    ".venv-trl",
    "Folder with TRL, for `ltrain dpo`: an environment of `make setup-trl`, or a folder of `pip "
    "install --no-deps --target`; unset: `.venv-trl` beside ltrain's own environment, else in the "
    "current folder. verl does not start where TRL can be imported.",
)
TINKER = Setting(
    "LTRAIN_TINKER",
    parse_optional_path,
    ".venv-tinker",
    "Folder with the SDK of the Tinker API: an environment of `make setup-tinker`, or a folder of "
    "`pip install --no-deps --target`; unset: `.venv-tinker` beside ltrain's own environment, else "
    "in the current folder.",
)

INSTRUMENTORS = Setting(
    "LTRAIN_INSTRUMENTORS",
    parse_providers,
    "",
    "Instrumentor of a library that has several: library=provider pairs, separated by commas, "
    "e.g. openai=openinference,mcp=none. instrumentors.md lists the names.",
)
REDACT = Setting(
    "LTRAIN_REDACT",
    parse_patterns,
    "",
    "Regular expressions, one per line. Text that matches is replaced by [redacted] before a span "
    "leaves the process, and the span's token ids are removed.",
)
SPAN_LIMIT = Setting(
    "LTRAIN_SPAN_LIMIT",
    parse_integer,
    "3145728",
    "Maximum bytes of attribute values in one span. In a larger span the longest values are cut to "
    "a common length and named in ltrain.cut. Receivers accept 4 MiB over gRPC and 16 to 20 MiB "
    "over HTTP.",
)

DISABLED_PATCHES = Setting(
    "LTRAIN_DISABLED_PATCHES",
    parse_names,
    "",
    "Patches that ltrain does not apply to an agent's process, separated by commas, e.g. "
    "subprocess,signals; * stands for all. process.md lists the names.",
)

SETTINGS: tuple[Setting[Any], ...] = (
    HOME,
    SPOOL_LIMIT,
    STORE,
    QUERY_LIMITS,
    ADMIN_LIMITS,
    BOUND_LIMITS,
    INGEST_LIMITS,
    OTLP_ENDPOINT,
    GATEWAY,
    STORE_SECRET,
    REWARD_KEY,
    WORKER_KEY,
    FORWARD_LIMIT,
    FORWARD_HEADERS,
    ALLOW_HOSTS,
    REQUEST_LIMIT,
    REQUEST_ITEMS,
    POLICY_URLS,
    CONVERSATIONS,
    SESSION_FIELDS,
    CONVERSATION_IDLE,
    POLICY_VERSION,
    VLLM_PYTHON,
    LEARNER_BACKEND,
    TRL,
    TINKER,
    INSTRUMENTORS,
    REDACT,
    SPAN_LIMIT,
    DISABLED_PATCHES,
)


def is_invalid_limit(text: str) -> bool:
    """Return whether the text of a limit is not a number; an empty text means no limit."""
    return bool(text.strip()) and not text.strip().isdigit()


def remove_invalid_limits(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove limits that are not numbers from the environment, with a warning each."""
    for name, text in pop_invalid_limits(environ).items():
        _logger.warning("ltrain: %s='%s' is not an integer and is ignored.", name, text)


def pop_invalid_limits(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Remove limits that are not numbers from the environment and return them."""
    names = (*LENGTH_LIMITS, *COUNT_LIMITS)
    return {name: environ.pop(name) for name in names if is_invalid_limit(environ.get(name, ""))}
