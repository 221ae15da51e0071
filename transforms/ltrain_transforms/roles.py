"""What a span or a log record is by its sender: only a trusted one is a runner's or a gateway's.

* The store records the sender of each record (`ltrain.sender`); no sender writes that itself.
* A scope's name alone proves nothing: an agent may use any.
* A capture runs in the agent's own process, so it has that role whoever sent it, and its token ids
  are trained only where a policy says `token_source = "capture"`.
"""

from collections.abc import Sequence
from enum import StrEnum

import polars as pl

from ltrain_collector.sender import Sender
from ltrain_instrument import attributes


class Role(StrEnum):
    """Whose word a record is."""

    RUNNER = "runner"
    GATEWAY = "gateway"
    LEARNER = "learner"
    CAPTURE = "capture"
    AGENT = "agent"


TRUSTED = (Sender.SERVICE, Sender.ADMIN, Sender.LOCAL)
"""Senders that every recipe trusts."""

SCOPES = {
    attributes.SCOPE_RUNNER: Role.RUNNER,
    attributes.SCOPE_GATEWAY: Role.GATEWAY,
    attributes.SCOPE_LEARNER: Role.LEARNER,
}
"""The roles that only a trusted sender has, by the scopes of their tracers."""

UNTRUSTED = {
    "untrusted": "it has the scope or the name of a span of ltrain's own processes, and came from "
    "sender '{}', which the recipe does not trust; [source] trust names the senders to trust"
}

MISPLACED = "it has the name of a runner's span, and its scope is '{}', not ltrain.runner"
"""Why a span of a trusted sender is no runner's; its drop is `untrusted`, too."""


def senders(trust: Sequence[str]) -> tuple[str, ...]:
    """Return the senders that a recipe trusts; `trust` is its `source.trust`."""
    return (*map(str, TRUSTED), *trust)


def with_roles(records: pl.DataFrame, trust: Sequence[str]) -> pl.DataFrame:
    """Fill `trusted` and `role` of records from their `sender` and `scope`."""
    trusted = pl.col("sender").fill_null("").is_in(trust)
    by_scope = pl.col("scope").replace_strict(SCOPES, default=None, return_dtype=pl.String)
    role = (
        pl.when(trusted & by_scope.is_not_null()).then(by_scope)
        .when(pl.col("scope") == attributes.SCOPE_CAPTURE).then(pl.lit(Role.CAPTURE.value))
        .otherwise(pl.lit(Role.AGENT.value))
    )  # fmt: skip
    return records.with_columns(trusted=trusted, role=role)


def posing() -> pl.Expr:
    """Return whether each of `SPANS` looks like a span of ltrain's own processes and is none."""
    scope = pl.col("scope").is_in(list(SCOPES))
    name = pl.col("name").is_in([attributes.SPAN_DISPATCH, attributes.SPAN_ROLLOUT])
    return (scope | name) & ~pl.col("role").is_in(list(map(str, SCOPES.values())))


def of(role: Role, trust: Sequence[str] = TRUSTED) -> str:
    """Return the SQL of the spans of a role, over the columns of `otel.spans`."""
    scope = next(scope for scope, one in SCOPES.items() if one is role)
    return f"(ScopeName = '{scope}' AND {sent_by(trust)})"


def sent_by(trust: Sequence[str]) -> str:
    """Return the SQL of the spans of trusted senders, over the columns of `otel.spans`."""
    listed = ", ".join(f"'{sender}'" for sender in trust)
    return f"Sender IN ({listed})"
