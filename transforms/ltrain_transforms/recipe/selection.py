"""Which executions a recipe reads and compares, and which calls become training rows."""

from datetime import datetime
from difflib import get_close_matches
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.identity import SourceMode
from ltrain_transforms.recipe.dialect import DeclaredDialect
from ltrain_transforms.recipe.failed_results import failed_results
from ltrain_transforms.recipe.section import Section

TrustedSender = Literal["ingest", "none", "agent", "import", ""]
"""A sender that a recipe may trust besides those that every recipe trusts."""


class Source(Section):
    run: str | None = None
    """Only executions of this run."""
    mode: SourceMode = "train"
    """Only executions of this mode; `--mode` overrides it. Those of mode `val` get credit only with
    `val`, or where `policy.modes` names it; those of mode `test` never do."""
    where: str | None = None
    """SQL predicate over the columns of `otel.spans`."""
    since: str | None = None
    """Earliest start of a span, ISO 8601."""
    until: str | None = None
    """Latest start of a span, ISO 8601."""
    execution: Literal["rollout", "session", "trace"] = "rollout"
    """The unit that counts as one execution."""
    idle_timeout: float | None = Field(default=None, gt=0)
    """Idle timeout in seconds for executions without a closing span; unset: they count as finished
    at once."""

    tool_error: tuple[str, ...] = ()
    """Tools failed whose result matches one of these: regular expressions, or the framework or the
    coding client that wrote it (`codex`, `crewai`, `dspy`, `gemini-cli`, `haystack`, `langchain`,
    `llama-index`, `mini-swe-agent`, `openai-agents`; Qwen Code's are those of `gemini-cli`)."""

    logs: Literal["error", "warn", "info", "debug"] | None = None
    """Least severity of the log records that rules on signals read; unset: none."""
    dialect: tuple[DeclaredDialect, ...] = ()
    """How spans of an instrumentation of your own are read as calls; of several that fit a span
    the first counts."""

    trust: tuple[TrustedSender, ...] = ()
    """More senders whose spans may be a runner's or a gateway's: `import` (files), `ingest` (an
    ingest key), `none` (no key), `agent` (a bound key), "" (no sender recorded). `service`,
    `admin` and `local` are always trusted."""

    def without_selection(self) -> "Source":
        """Return how spans are read, without the selection of any."""
        kept = {name: getattr(self, name) for name in ("logs", "dialect", "trust")}
        return Source(**kept)

    @field_validator("tool_error")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if error := _pattern_error(pattern):
                names = ", ".join(sorted(failed_results()))
                raise ValueError(
                    f"'{pattern}' is not a valid pattern of a failed result: "
                    f"{error.rstrip('.')}. Ready ones are named {names}."
                )
        return patterns

    @field_validator("since", "until")
    @classmethod
    def _is_time(cls, value: str | None) -> str | None:
        try:
            datetime.fromisoformat(value or "2026-01-31")
        except ValueError as error:
            raise ValueError(
                f"'{value}' is not an ISO 8601 time, such as '2026-01-31' or "
                "'2026-01-31T12:00:00Z'."
            ) from error
        return value


class FailedCounts(Section):
    reward: float = 0.0
    """The outcome reward of an attempt with an error or a timeout."""


class Filter(Section):
    failed: FailedCounts | Literal["drop"] = FailedCounts()
    """Attempts with an error or a timeout: counted with this reward, or dropped."""
    max_tokens: int = Field(default=4096, ge=1)
    """Longer rows are dropped as `too_long`; a row's length is that of its last call's prompt and
    response."""
    too_long: Literal["call", "row"] = "call"
    """The dropped part of a longer row: the calls that do not fit, or all of its calls."""
    allow: tuple[
        Literal["incomplete", "redacted", "truncated", "undelivered", "constrained", "no_version"],
        ...,
    ] = ()
    """Reasons of drops that this recipe ignores: such executions and calls are trained."""
    max_groups: int | None = Field(default=None, ge=1)
    """Train only this many groups, those whose outcomes differ most."""


class Watch(Section):
    """How `ltrain run --watch` follows a store; read only there, and not in the digest."""

    executions: int = Field(default=64, ge=1)
    """Executions that must have ended since the last update before the next one."""
    reward_window: float = Field(default=300.0, ge=0)
    """Seconds from the end of an execution on in which its rewards may arrive; after that it
    counts."""
    history: float = Field(default=86400.0, gt=0)
    """Seconds before the last update, or before the start, from which on executions are read: for
    groups that were not complete then."""
    poll: float = Field(default=10.0, gt=0)
    """Seconds between two looks at the store."""
    keep_days: float | None = Field(default=None, gt=0)
    """Days for which the store keeps spans, log records and metrics of all runs and modes; what a
    version in this home was trained on stays. Unset: all stay."""

    @model_validator(mode="after")
    def _keeps_its_history(self) -> Self:
        needed = (self.history + self.reward_window) / 86_400
        if self.keep_days is not None and self.keep_days < needed:
            raise ValueError(
                f"keep_days = {self.keep_days:g} removes executions before they are trained on: "
                f"history and reward_window need {needed:.3g} days"
            )
        return self


def _pattern_error(pattern: str) -> str | None:
    """Return the fault of `pattern`; None where it is valid, or a name of `failed_results`."""
    import polars as pl  # most recipes have no pattern, and Polars takes half of their import

    if pattern not in failed_results() and (
        close := get_close_matches(pattern.replace("_", "-"), failed_results())
    ):
        return f"did you mean '{close[0]}'?"
    try:
        if pl.Series(["", "7", "a b"]).str.contains(failed_results().get(pattern, pattern)).all():
            return "it matches every result"
    except pl.exceptions.ComputeError as error:
        lines = str(error).removeprefix("regex error: ").splitlines()
        reasons = (line for line in lines if line.startswith("error: "))
        return next(reasons, lines[0]).removeprefix("error: ")
    return None
