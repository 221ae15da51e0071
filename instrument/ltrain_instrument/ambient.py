"""Whose work is being done here: the identity that travels in OpenTelemetry's context.

It travels as baggage too, so that a service the agent calls can know the rollout.
"""

from dataclasses import dataclass

from opentelemetry import baggage, context
from opentelemetry.context import Context

from ltrain_instrument.identity import Identity

_KEY = context.create_key("ltrain-identity")


@dataclass(slots=True, eq=False)
class Stay:
    """The time that a context spends in an identity."""

    identity: Identity
    texts: dict[str, str]
    """The identity as baggage."""
    before: Context
    over: bool = False


def enter(identity: Identity) -> Stay:
    """Make the identity that of the current context, until `leave`."""
    before = context.get_current()
    inside, stay = _inside(identity, before)
    context.attach(inside)
    return stay


def leave(stay: Stay) -> None:
    """End a stay, in whatever order: of interleaved generators the first may be left first."""
    stay.over = True
    here = context.get_value(_KEY)
    if isinstance(here, Stay) and here.over:
        while isinstance(outer := context.get_value(_KEY, here.before), Stay) and outer.over:
            here = outer
        context.attach(here.before)


def with_identity(identity: Identity, base: Context | None = None) -> Context:
    """Give a context in which spans belong to `identity`."""
    return _inside(identity, context.get_current() if base is None else base)[0]


def _inside(identity: Identity, base: Context) -> tuple[Context, Stay]:
    texts = {name: str(value) for name, value in identity.attributes().items()}
    stay = Stay(identity, texts, base)
    inside = context.set_value(_KEY, stay, base)
    for name in _carried(base).keys() - texts.keys():
        inside = baggage.remove_baggage(name, inside)
    for name, text in texts.items():
        inside = baggage.set_baggage(name, text, inside)
    return inside, stay


def identity_in(where: Context | None = None) -> Identity | None:
    """Give the identity of a context, by default the current one."""
    stay, carried = context.get_value(_KEY, where), _carried(where)
    # Baggage that plain OpenTelemetry has changed since speaks for the work inside
    if isinstance(stay, Stay) and (not carried or carried == stay.texts):
        return stay.identity
    return Identity.from_attributes(carried) if carried else None


def _carried(where: Context | None) -> dict[str, str]:
    found = baggage.get_all(where).items()
    return {name: str(value) for name, value in found if name.startswith("ltrain.")}


def identity_here() -> Identity:
    """Give the identity of the current context, else of this process; its fields may be None."""
    return identity_in() or Identity.from_environ()
