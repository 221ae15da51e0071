"""Whose work is being done here: the identity that travels in OpenTelemetry's context.

It travels as baggage too, so that a service the agent calls can know the rollout.
"""

from opentelemetry import baggage, context
from opentelemetry.context import Context

from ltrain_instrument.identity import Identity

_KEY = context.create_key("ltrain-identity")


def with_identity(identity: Identity, base: Context | None = None) -> Context:
    """Give a context in which spans belong to `identity`."""
    inside = context.set_value(_KEY, identity, base)
    for name, value in identity.attributes().items():
        inside = baggage.set_baggage(name, str(value), inside)
    return inside


def identity_in(where: Context | None = None) -> Identity | None:
    """Give the identity of a context, by default the current one."""
    found = context.get_value(_KEY, where)
    if isinstance(found, Identity):
        return found
    carried = baggage.get_all(where)
    if not any(name.startswith("ltrain.") for name in carried):
        return None
    return Identity.from_attributes(carried)


def identity_here() -> Identity:
    """Give the identity of the current context, else of this process; its fields may be None."""
    return identity_in() or Identity.from_environ()
