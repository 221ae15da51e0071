"""What one span, one message and one history of messages contain, read from untrusted text."""

from ltrain_transforms.traces import sender_roles
from ltrain_transforms.traces.history import (
    THINKING,
    ComparableHistory,
    Message,
    common_prefix,
    comparable_history,
    continues,
    has_thinking,
    is_assistant,
    message_parts,
    parse_messages,
    share_message,
)
from ltrain_transforms.traces.sender_roles import (
    MISPLACED,
    TRUSTED,
    UNTRUSTED,
    Role,
    is_impostor,
    with_roles,
)
from ltrain_transforms.traces.spans import MAX_ATTRIBUTE_CHARS, Log, Span, iter_spans
from ltrain_transforms.traces.untrusted import (
    FAILURES,
    INTEGER_LIMIT,
    error_text,
    parse_index,
    parse_json,
    parse_literal,
)

__all__ = [
    "FAILURES",
    "INTEGER_LIMIT",
    "MAX_ATTRIBUTE_CHARS",
    "MISPLACED",
    "THINKING",
    "TRUSTED",
    "UNTRUSTED",
    "ComparableHistory",
    "Log",
    "Message",
    "Role",
    "Span",
    "common_prefix",
    "comparable_history",
    "continues",
    "error_text",
    "has_thinking",
    "is_assistant",
    "is_impostor",
    "iter_spans",
    "message_parts",
    "parse_index",
    "parse_json",
    "parse_literal",
    "parse_messages",
    "sender_roles",
    "share_message",
    "with_roles",
]
