"""The content of one span, one message and one history of messages, from untrusted text."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.traces import sender_roles
    from ltrain_transforms.traces.history import (
        ComparableHistory,
        common_prefix,
        comparable_history,
        continues,
        has_thinking,
        share_message,
    )
    from ltrain_transforms.traces.messages import (
        REQUEST,
        RESULT,
        TEXT,
        THINKING,
        Fields,
        Message,
        MessagePart,
        ToolRequest,
        ToolResult,
        messages_text,
        new_message,
        read_message,
        read_messages,
        request_part,
        result_part,
        text_part,
        to_text,
        tool_requests,
        write_messages,
    )
    from ltrain_transforms.traces.sender_roles import (
        MISPLACED,
        TRUSTED,
        UNTRUSTED,
        Role,
        is_impostor,
        with_roles,
    )
    from ltrain_transforms.traces.spans import (
        ELSEWHERE,
        MAX_ATTRIBUTE_CHARS,
        Exemplar,
        Log,
        Span,
        iter_spans,
    )
    from ltrain_transforms.traces.untrusted import (
        FAILURES,
        INTEGER_LIMIT,
        error_text,
        parse_index,
        parse_json,
        parse_literal,
    )

open_face(__name__)
