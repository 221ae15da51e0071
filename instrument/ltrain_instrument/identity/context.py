"""The identity of the current work, carried in OpenTelemetry's context.

Baggage carries it too, so that a service that the agent calls knows the rollout.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import baggage, context
from opentelemetry.context import Context

from ltrain_instrument.identity.rollout_identity import Identity

_KEY = context.create_key("ltrain-identity")


@contextmanager
def use_context(inside: Context) -> Iterator[None]:
    """Make a context current for a block."""
    token = context.attach(inside)
    try:
        yield
    finally:
        context.detach(token)


@dataclass(slots=True, eq=False)
class IdentityScope:
    """A period in which a context belongs to one identity."""

    identity: Identity
    texts: dict[str, str]
    """The identity as baggage entries."""
    previous: Context
    ended: bool = False


def enter_identity(identity: Identity) -> IdentityScope:
    """Make `identity` that of the current context until `exit_identity`."""
    previous = context.get_current()
    inner, scope = _context_with_scope(identity, previous)
    context.attach(inner)
    return scope


def exit_identity(scope: IdentityScope) -> None:
    """End a scope, in any order: interleaved generators may exit the outer scope first."""
    scope.ended = True
    current = context.get_value(_KEY)
    if isinstance(current, IdentityScope) and current.ended:
        while (
            isinstance(outer := context.get_value(_KEY, current.previous), IdentityScope)
            and outer.ended
        ):
            current = outer
        context.attach(current.previous)


def context_with_identity(identity: Identity, base: Context | None = None) -> Context:
    """Return a context in which spans belong to `identity`."""
    return _context_with_scope(identity, context.get_current() if base is None else base)[0]


def _context_with_scope(identity: Identity, base: Context) -> tuple[Context, IdentityScope]:
    texts = {name: str(value) for name, value in identity.attributes().items()}
    scope = IdentityScope(identity, texts, base)
    inner = context.set_value(_KEY, scope, base)
    for name in _ltrain_baggage(base).keys() - texts.keys():
        inner = baggage.remove_baggage(name, inner)
    for name, text in texts.items():
        inner = baggage.set_baggage(name, text, inner)
    return inner, scope


def identity_from_context(in_context: Context | None = None) -> Identity | None:
    """Return the identity of a context, by default of the current one."""
    scope, entries = context.get_value(_KEY, in_context), _ltrain_baggage(in_context)
    # Baggage that the agent has changed with plain OpenTelemetry since then takes precedence
    if isinstance(scope, IdentityScope) and (not entries or entries == scope.texts):
        return scope.identity
    return Identity.from_attributes(entries) if entries else None


def _ltrain_baggage(in_context: Context | None) -> dict[str, str]:
    entries = baggage.get_all(in_context).items()
    return {name: str(value) for name, value in entries if name.startswith("ltrain.")}


def current_identity() -> Identity:
    """Return the identity of the current context, else of this process; its fields may be None."""
    return identity_from_context() or Identity.from_environ()
