"""How the attributes of each instrumentation describe a call: one module a dialect."""

from ltrain_transforms.dialects.attribute_messages import AttributeMessages, ComparableOutput
from ltrain_transforms.dialects.partial import Partial, Tokens
from ltrain_transforms.dialects.registry import BY_PRECEDENCE, describe

__all__ = [
    "BY_PRECEDENCE",
    "AttributeMessages",
    "ComparableOutput",
    "Partial",
    "Tokens",
    "describe",
]
