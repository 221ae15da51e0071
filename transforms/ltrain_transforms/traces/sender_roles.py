"""The role of a span or a log record: runner, gateway, learner, person, capture or agent.

* The store records the sender of each record (`ltrain.sender`); no sender can write it.
* Only a trusted sender has the role of a runner, gateway, learner or person. The scope alone
  proves nothing: an agent may use any scope.
* A capture runs in the agent's own process, so it has this role whoever sent it, and its token ids
  are trained only where a policy has `token_source = "capture"`.
"""

from collections.abc import Sequence
from enum import StrEnum

import polars as pl

from ltrain_collector.access import TRUSTED_SENDERS
from ltrain_instrument import attributes


class Role(StrEnum):
    """Who wrote a record."""

    RUNNER = "runner"
    GATEWAY = "gateway"
    LEARNER = "learner"
    PERSON = "person"
    """Gave feedback by hand."""
    CAPTURE = "capture"
    AGENT = "agent"


TRUSTED = TRUSTED_SENDERS
"""Senders that every recipe trusts."""

SCOPES = {
    attributes.SCOPE_RUNNER: Role.RUNNER,
    attributes.SCOPE_GATEWAY: Role.GATEWAY,
    attributes.SCOPE_LEARNER: Role.LEARNER,
    attributes.SCOPE_PERSON: Role.PERSON,
}
"""The roles that only a trusted sender has, by the scope of their tracer."""

UNTRUSTED = {
    "untrusted": "it has the scope or the name of a span of ltrain's own processes, and came from "
    "sender '{}', which the recipe does not trust; [source] trust names the senders to trust"
}

MISPLACED = "it has the name of a runner's span, and its scope is '{}', not ltrain.runner"
"""Why a trusted sender's span is not a runner's; the reason of its drop is `untrusted` as well."""


def trusted_senders(trust: Sequence[str]) -> tuple[str, ...]:
    """Return all senders that a recipe trusts; `trust` is its `source.trust`."""
    return (*map(str, TRUSTED), *trust)


def with_roles(records: pl.DataFrame, trust: Sequence[str]) -> pl.DataFrame:
    """Add `trusted` and `role`, made from `sender` and `scope`."""
    trusted = pl.col("sender").fill_null("").is_in(trust)
    by_scope = pl.col("scope").replace_strict(SCOPES, default=None, return_dtype=pl.String)
    role = (
        pl.when(trusted & by_scope.is_not_null()).then(by_scope)
        .when(pl.col("scope") == attributes.SCOPE_CAPTURE).then(pl.lit(Role.CAPTURE.value))
        .otherwise(pl.lit(Role.AGENT.value))
    )  # fmt: skip
    return records.with_columns(trusted=trusted, role=role)


def is_impostor() -> pl.Expr:
    """Return whether a span has the name or scope of ltrain's processes without their role."""
    scope = pl.col("scope").is_in(list(SCOPES))
    name = pl.col("name").is_in([attributes.SPAN_DISPATCH, attributes.SPAN_ROLLOUT])
    return (scope | name) & ~pl.col("role").is_in(list(map(str, SCOPES.values())))


def role_condition(role: Role, trust: Sequence[str] = TRUSTED) -> str:
    """Return an SQL condition on `otel.spans`: the span has this role."""
    scope = next(scope for scope, one in SCOPES.items() if one is role)
    return f"(ScopeName = '{scope}' AND {sender_condition(trust)})"


def sender_condition(trust: Sequence[str]) -> str:
    """Return an SQL condition on `otel.spans`: a trusted sender sent the span."""
    names = ", ".join(f"'{sender}'" for sender in trust)
    return f"Sender IN ({names})"
