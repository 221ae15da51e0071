"""Settings of every part: one row a setting, read from the environment, else the default.

OpenTelemetry's own variables (`OTEL_*`) are read by OpenTelemetry itself and are not repeated here,
but for the endpoint, which our parts share. `docs/settings.md` is made from this table.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ltrain_instrument.errors import BadSetting

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    name: str
    """The environment variable."""
    read_as: Callable[[str], T]
    default: str
    """As text, what an unset variable means; '' is 'not set'."""
    doc: str
    """One sentence: what it decides, with its unit."""

    def read(self, environ: Mapping[str, str] | None = None) -> T:
        """Return the value in force.

        Raises:
            BadSetting: when the text cannot be read.
        """
        text = (os.environ if environ is None else environ).get(self.name) or self.default
        try:
            return self.read_as(text)
        except BadSetting as error:
            raise BadSetting(f"{self.name}: {error}") from error
        except ValueError as error:
            wanted = self.read_as.__name__
            raise BadSetting(
                f"{self.name}='{text}' cannot be read as {wanted}. {self.doc} "
                f"Unset it for the default '{self.default}'."
            ) from error


def _optional_path(text: str) -> Path | None:
    return Path(text) if text else None


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    wrong = [name for name, equals, value in pairs if not (name.strip() and equals and value)]
    if wrong:
        raise BadSetting(
            f"'{wrong[0]}' in '{text}' is not understood. "
            "Allowed: library=maker, several parted by commas, e.g. openai=openinference,mcp=none."
        )
    return {name.strip(): value.strip() for name, _, value in pairs}


def _patterns(text: str) -> tuple[re.Pattern[str], ...]:
    return tuple(_pattern(line.strip()) for line in text.splitlines() if line.strip())


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError) as error:
        raise BadSetting(f"'{text}' is no regular expression: {error}.") from error
    if pattern.search(""):
        raise BadSetting(f"'{text}' matches the empty text, so it says nothing.")
    return pattern


def base_urls(text: str) -> tuple[str, ...]:
    urls = tuple(url.strip() for url in text.split(",") if url.strip())
    if not all(url.startswith(("http://", "https://")) for url in urls):
        raise ValueError("a base URL begins with http:// or https://")
    return urls


def whole_number(text: str) -> int | None:
    return int(text) if text else None


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


LIMITS = ("seconds", "memory", "rows", "disk", "statement", "parallel", "queued")
"""Of one role's queries: seconds, MiB, rows, MiB, KiB, queries at a time, queries that wait."""


def limits(text: str) -> dict[str, int]:
    """Read `name=number` pairs, separated by commas."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for name, _, value in pairs:
        if name.strip() not in LIMITS or not value.strip().isdecimal():
            raise BadSetting(
                f"'{name}={value}' in '{text}' is not a limit. Allowed: NAME=NUMBER, separated by "
                f"commas, of {', '.join(LIMITS)}; e.g. seconds=600,memory=4096."
            )
    return {name.strip(): int(value) for name, _, value in pairs}


HOME = Setting("LTRAIN_HOME", Path, ".ltrain", "Folder of store, policies, runs, spool, datasets.")
SERVICES = "services"
"""The folder in a home that only ltrain's own processes write to."""
SPOOL_LIMIT = Setting(
    "LTRAIN_SPOOL_LIMIT",
    int,
    "1024",
    "MiB on disk that spans may take in LTRAIN_HOME's `spool` while they wait for the collector, "
    "and as much again in `spool/refused` and in `spool/damaged`; what comes beyond it is dropped, "
    "counted and said once.",
)
STORE = Setting(
    "LTRAIN_STORE",
    str,
    "",
    "The trace store: chdb:///dir, http://host:8123 or clickhouse://user:pass@host:8123/otel. "
    "Unset: http://127.0.0.1:8123 where it answers, else the folder `store` of LTRAIN_HOME.",
)
QUERY_LIMITS = Setting(
    "LTRAIN_QUERY_LIMITS",
    limits,
    "seconds=300,memory=2048,rows=10000000000,disk=4096,statement=256,queued=32",
    "Limits of keys of role `query` at the ClickHouse port of `ltrain up`; what is not named keeps "
    "its default, 0 is no limit. Of a query: `seconds`, MiB of `memory`, `rows` read, MiB of "
    "temporary files on `disk`, KiB of a SQL `statement`; of a key: queries that run in `parallel` "
    "(half of the cores, at least 2) and those that are `queued`.",
)
ADMIN_LIMITS = Setting(
    "LTRAIN_ADMIN_LIMITS",
    limits,
    "seconds=3600,memory=3072,rows=0,disk=0,statement=0,parallel=6,queued=256",
    "The same for keys of role `admin`, and for a store without keys.",
)
OTLP_ENDPOINT = Setting(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    str,
    "http://127.0.0.1:4318",
    "Where spans are sent, OTLP over HTTP.",
)
GATEWAY = Setting(
    "LTRAIN_GATEWAY", str, "http://127.0.0.1:8000", "The gateway's address, as agents reach it."
)
GATEWAY_SECRET = Setting(
    "LTRAIN_GATEWAY_SECRET",
    str,
    "",
    "Signs rollout keys; unset: the file `gateway.secret` of LTRAIN_HOME, made on first use.",
)
STORE_SECRET = Setting(
    "LTRAIN_STORE_SECRET",
    str,
    "",
    "Signs the store's bound keys; unset: the file `<folder>.secret` beside the store's folder, "
    "made on first use.",
)
SECRETS = (STORE.name, STORE_SECRET.name, GATEWAY_SECRET.name)
"""Variables that hold a secret, or a key that reads: only for ltrain's own processes."""
ALLOW_HOSTS = Setting(
    "LTRAIN_ALLOW_HOSTS",
    names,
    "",
    "Names by which clients ask for the collector and the gateway, beside 127.0.0.1 and localhost, "
    "separated by commas: a request whose `Host` is not listed is refused.",
)
POLICY_URLS = Setting(
    "LTRAIN_POLICY_URLS",
    base_urls,
    "",
    "Base URLs of policy servers that agents reach without the gateway, as the agent writes them, "
    "separated by commas: calls below them are asked for token ids and recorded.",
)
POLICY_VERSION = Setting(
    "LTRAIN_POLICY_VERSION",
    whole_number,
    "",
    "The version that is sampled below LTRAIN_POLICY_URLS; unset: not known.",
)
VLLM_PYTHON = Setting(
    "LTRAIN_VLLM_PYTHON",
    _optional_path,
    ".venv-vllm/bin/python",
    "The Python of vLLM's environment; unset: that beside ltrain's own, else of this folder.",
)

INSTRUMENTORS = Setting(
    "LTRAIN_INSTRUMENTORS",
    _pairs,
    "",
    "Who instruments a library, where several are installed: library=maker, parted by commas, "
    "e.g. openai=openinference,mcp=none; the names are in instrumentors.md.",
)
REDACT = Setting(
    "LTRAIN_REDACT",
    _patterns,
    "",
    "Regular expressions, one a line: text that matches is replaced by [redacted] before a span "
    "leaves the process, and its token ids go with it.",
)
SPAN_LIMIT = Setting(
    "LTRAIN_SPAN_LIMIT",
    int,
    "3145728",
    "Bytes of values in one span; where it has more, the longest are cut to a common length and "
    "named in ltrain.cut. Receivers take 4 MiB over gRPC, 16 to 20 over HTTP.",
)

SETTINGS: tuple[Setting[Any], ...] = (
    HOME,
    SPOOL_LIMIT,
    STORE,
    QUERY_LIMITS,
    ADMIN_LIMITS,
    OTLP_ENDPOINT,
    GATEWAY,
    GATEWAY_SECRET,
    STORE_SECRET,
    ALLOW_HOSTS,
    POLICY_URLS,
    POLICY_VERSION,
    VLLM_PYTHON,
    INSTRUMENTORS,
    REDACT,
    SPAN_LIMIT,
)
