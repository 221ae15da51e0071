"""How the attributes of each instrumentation describe a call: one module a dialect."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.dialects.attribute_messages import AttributeMessages, ComparableOutput
    from ltrain_transforms.dialects.chat import chat_messages
    from ltrain_transforms.dialects.gen_ai import KIND_OPERATIONS
    from ltrain_transforms.dialects.partial import Partial, Tokens
    from ltrain_transforms.dialects.registry import BY_PRECEDENCE, describe

open_face(__name__)
