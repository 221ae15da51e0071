"""Settings of every part: one row a setting, read from the environment, else the default.

OpenTelemetry's own variables (`OTEL_*`) are read by OpenTelemetry itself and are not repeated here,
but for the endpoint, which our parts share. `docs/settings.md` is made from this table.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

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
        """Give the value in force.

        Raises:
            BadSetting: when the text cannot be read.
        """
        text = (os.environ if environ is None else environ).get(self.name) or self.default
        try:
            return self.read_as(text)
        except ValueError as error:
            wanted = self.read_as.__name__
            raise BadSetting(
                f"{self.name}='{text}' cannot be read as {wanted}. {self.doc} "
                f"Unset it for the default '{self.default}'."
            ) from error


def _optional_path(text: str) -> Path | None:
    return Path(text) if text else None


HOME = Setting("LTRAIN_HOME", Path, ".ltrain", "Folder of store, policies, runs, spool, datasets.")
SPOOL_LIMIT = Setting(
    "LTRAIN_SPOOL_LIMIT",
    int,
    "1024",
    "MiB on disk that spans may take in LTRAIN_HOME's `spool` while they wait for the collector, "
    "and as much again in `spool/refused`; what comes beyond it is dropped, counted and said once.",
)
STORE = Setting(
    "LTRAIN_STORE",
    str,
    "",
    "The trace store: chdb:///dir, http://host:8123 or clickhouse://user:pass@host:8123/otel. "
    "Unset: http://127.0.0.1:8123 where it answers, else the folder `store` of LTRAIN_HOME.",
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
VLLM_PYTHON = Setting(
    "LTRAIN_VLLM_PYTHON",
    _optional_path,
    ".venv-vllm/bin/python",
    "The Python of vLLM's environment; unset: that beside ltrain's own, else of this folder.",
)

SETTINGS: tuple[Setting[str] | Setting[int] | Setting[Path] | Setting[Path | None], ...] = (
    HOME,
    SPOOL_LIMIT,
    STORE,
    OTLP_ENDPOINT,
    GATEWAY,
    GATEWAY_SECRET,
    VLLM_PYTHON,
)
